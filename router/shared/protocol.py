"""What routers need of whatever they share, and how it can fail them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class StoreState(StrEnum):
    """What can be said of the store now. `off`: none is configured."""

    OFF = "off"
    OK = "ok"
    SLOW = "slow"
    DOWN = "down"
    FULL = "full"
    DENIED = "denied"


class StoreFailed(Exception):
    """The store did not do it, or not in time. Whoever asked goes on alone."""

    def __init__(self, state: StoreState, message: str) -> None:
        super().__init__(f"{state}: {message}")
        self.state = state


@dataclass(frozen=True, slots=True)
class Exchange:
    """Others' latest reports by router id. `was_known`: our last report was still there."""

    others: Mapping[str, bytes]
    was_known: bool


@dataclass(frozen=True, slots=True)
class Notes:
    """What routers noted since, the oldest first, and where to go on."""

    notes: Sequence[bytes]
    last: str


class SharedStore(Protocol):
    """Small reports of routers, each kept for a time. Every method raises StoreFailed."""

    async def exchange(self, router_id: str, report: bytes, ttl_s: float) -> Exchange:
        """Leave ours for `ttl_s`, take all others': one round trip."""

    async def trade(self, note: bytes | None, since: str, ttl_s: float) -> Notes:
        """Leave a note, if there is one, and take all that came after `since`, ours too; "0": all.
        One round trip. Of very many notes the oldest are gone, and only some come at once.
        """

    async def publish(self, news: bytes) -> None:
        """To whoever listens now. One round trip; nothing is kept."""

    async def listen(self, hear: Callable[[bytes], None], ready: Callable[[], None]) -> None:
        """Give `hear` all that is published, ours too, until it is cancelled or the store fails;
        `ready` is called once from where on nothing is missed.
        """

    async def leave(self, router_id: str) -> None:
        """This router goes: its report is nobody's any more. Unknown ids are no error."""

    async def aclose(self) -> None:
        """Close connections."""
