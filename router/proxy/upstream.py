"""One connection to an engine."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast


class Reader(Protocol):
    """Belongs to the connection: whoever reads the reply that is under way."""

    def received(self, data: bytes) -> None:
        """Bytes came."""

    def lost(self, error: Exception | None) -> None:
        """The engine closed the connection (None) or it broke."""

    def refused(self) -> None:
        """The engine takes no new connections: it has stopped, or is about to."""

    def look(self) -> float:
        """Time has passed. Returns in how many seconds to look again, at the latest."""


class Upstream(asyncio.Protocol):
    """Carries one exchange at a time. `is_clean`: the last one left nothing behind."""

    __slots__ = (
        "_on_lost",
        "_reader",
        "_timer",
        "_transport",
        "idle_since",
        "is_clean",
        "is_reused",
        "url",
    )

    def __init__(self, url: str, on_lost: Callable[["Upstream"], None]) -> None:
        self.url = url
        self.idle_since = 0.0
        self.is_reused = False
        self.is_clean = False
        self._reader: Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._on_lost = on_lost

    @property
    def is_usable(self) -> bool:
        """A next request may be sent."""
        transport = self._transport
        return (
            self.is_clean and not transport.is_closing() and not transport.get_write_buffer_size()
        )

    def begin(self, reader: Reader, head: bytes, body: bytes, look_s: float) -> None:
        """Send a request; its reply goes to `reader` until `leave`.

        It looks at the time in `look_s` or before: a timer that an earlier reader left behind may
        serve the next ones, rather than that each sets its own.
        """
        self._reader = reader
        if self._timer is None:
            self._look_later(look_s)
        self.is_clean = False
        # in one call of the system, and without a copy
        self._transport.writelines((head, body))

    def refused(self) -> None:
        """Tell whoever waits for a reply that the engine's port is closed."""
        if self._reader is not None:
            self._reader.refused()

    def leave(self) -> None:
        """No more to the reader."""
        self._reader = None

    def abort(self) -> None:
        """Close at once, unsent bytes or not: this is how an engine learns to stop."""
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # uvloop else keeps what is written until it has read from all others
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            # nobody asked: whatever this is, the connection can't be trusted any more
            self.abort()
        else:
            self._reader.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_clean = False
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None:
            self._reader.lost(exc)
        self._on_lost(self)

    def _look_later(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if (reader := self._reader) is not None:
            delay_s = reader.look()
            if self._reader is not None:
                self._look_later(delay_s)
