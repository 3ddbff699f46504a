"""Server-sent events from bytes that were cut anywhere (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024


class EventTooLong(Exception):
    """More than `MAX_EVENT_BYTES` without an event's end: not a stream of events."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """`data` lines joined by newlines; `name` is empty for the default event, "message"."""

    data: bytes
    name: bytes = b""


class EventParser:
    """Feed it what was read; it returns the events that are complete, and keeps the rest."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False

    def feed(self, data: bytes) -> list[Event]:
        """Events that end within `data`. EventTooLong when one grows without end."""
        # Nearly every read is one event of one line: no copy but that of its data.
        if (
            not self._rest
            and data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and b"\r" not in data
        ):
            self._after_cr = False
            return [Event(data[6:-2])]
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong(f"{len(self._rest)} bytes without an empty line")
        return [event for block in blocks if (event := _parse(block)) is not None]

    def close(self) -> list[Event]:
        """At the end of the stream: some servers leave out the last empty line."""
        rest, self._rest = self._rest, b""
        event = _parse(rest)
        return [] if event is None else [event]


def _parse(block: bytes) -> Event | None:
    # Most events of these APIs are a single line; skip the loop over fields for it.
    if block.startswith(b"data: ") and b"\n" not in block:
        return Event(block[6:])
    data: list[bytes] = []
    name = b""
    for line in block.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return Event(b"\n".join(data), name) if data else None
