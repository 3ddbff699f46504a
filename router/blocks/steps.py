"""Decoding of large batches in steps, between which an event loop may do something else."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, TypeAlias

import msgpack

from router.blocks.events import Event
from router.blocks.wire import MalformedFrame, as_event, decode_batch

SMALL_BYTES: Final = 48 * 1024
"""Payloads up to here (some 700 blocks of 16 tokens) take less than a millisecond in one go."""

VALUES_PER_STEP: Final = 4096
"""About half a millisecond."""

_VALUES_OF_AN_EVENT: Final = 16  # what making it takes, beside its values
_FIELD_DEPTH: Final = 1
"""An event's fields are read one by one; what lies deeper (a field's list) is cut by length."""

Steps: TypeAlias = "Generator[None, None, Any]"


class EventReader:
    """The events of a batch, one after the other; `None` wherever a step is over.

    What has been read is not kept. MalformedFrame, perhaps after some events.
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.unknown_events = 0
        """Events of kinds that we don't know, up to now."""

    def __iter__(self) -> Iterator[Event | None]:
        if len(self._payload) <= SMALL_BYTES:
            batch = decode_batch(self._payload)
            self.unknown_events = batch.unknown_events
            yield from batch.events
            return
        try:
            yield from self._in_steps()
        except (ValueError, TypeError, LookupError, msgpack.UnpackException) as exc:
            raise MalformedFrame(f"no batch of KV events: {type(exc).__name__}: {exc}") from exc

    def _in_steps(self) -> Iterator[Event | None]:
        reader = _Reader(self._payload)
        fields = reader.count()
        float(reader.whole())  # the batch's time
        for _ in range(reader.count()):
            event = as_event((yield from reader.value(_FIELD_DEPTH)))
            yield from reader.spend(_VALUES_OF_AN_EVENT)
            if event is None:
                self.unknown_events += 1
            else:
                yield event
        for _ in range(fields - _FIELDS_BEFORE):
            reader.whole()
        reader.end()


_FIELDS_BEFORE: Final = 2  # its time, its events


class _Reader:
    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(payload) + 1)
        self._unpacker.feed(payload)
        self._spent = 0

    def spend(self, values: int) -> Steps:
        """Count what was read; a step ends when it is enough."""
        self._spent += values
        if self._spent >= VALUES_PER_STEP:
            self._spent = 0
            yield

    def end(self) -> None:
        """ValueError if there is more."""
        if self._unpacker.tell() != len(self._payload):
            raise ValueError("bytes after its end")

    def count(self) -> int:
        """How many values the next one, a list, has. ValueError: it is none."""
        number: int = self._unpacker.read_array_header()
        return number

    def whole(self) -> Any:
        """The next value, in one go."""
        return self._unpacker.unpack()

    def value(self, depth: int) -> Steps:
        """The next value; lists and maps down to `depth` piece by piece."""
        at = self._unpacker.tell()
        first = self._payload[at] if at < len(self._payload) else 0
        if _is_array(first):
            count = self._unpacker.read_array_header()
            return (yield from self._items(count, depth))
        if depth and _is_map(first):
            found = {}
            for _ in range(self._unpacker.read_map_header()):
                key = self._unpacker.unpack()
                found[key] = yield from self.value(depth - 1)
            return found
        yield from self.spend(1)
        return self._unpacker.unpack()

    def _items(self, count: int, depth: int) -> Steps:
        items: list[Any] = []
        if depth:
            while len(items) < count:
                item = yield from self.value(depth - 1)
                items.append(item)
            return items
        unpack = self._unpacker.unpack
        while len(items) < count:
            wanted = min(count - len(items), VALUES_PER_STEP)
            items += [unpack() for _ in range(wanted)]
            yield from self.spend(wanted)
        return items


def _is_array(first: int) -> bool:
    return first & 0xF0 == 0x90 or first in (0xDC, 0xDD)


def _is_map(first: int) -> bool:
    return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)
