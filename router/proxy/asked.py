"""What the data path reads of a client's request. aiohttp's own requests have all of it."""

from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import HttpVersion


class Asked(Protocol):
    """`transport`: None when the client has left. `raw_headers`: names and values as they came."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def path_qs(self) -> str:
        """Path and query, as they came."""

    @property
    def version(self) -> HttpVersion: ...
    @property
    def keep_alive(self) -> bool: ...
    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]: ...
    @property
    def transport(self) -> Any: ...
    @property
    def protocol(self) -> Any:
        """Knows `writing_paused`."""

    @property
    def writer(self) -> Any:
        """Has a coroutine `drain`."""
