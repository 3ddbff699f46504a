"""Decoding of large batches in steps, between which an event loop may do something else."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np

from router.blocks import numbers
from router.blocks.events import Event
from router.blocks.hashing import TYPE_CODE
from router.blocks.wire import MalformedFrame, as_event, decode_batch
from router.compiled import is_compiled

SMALL_BYTES: Final = 48 * 1024
"""Payloads up to here (some 700 blocks of 16 tokens) take less than a millisecond in one go."""

VALUES_PER_STEP: Final = 4096
"""Numbers of a list: about half a millisecond."""

IDS_PER_STEP: Final = 32_768
"""Token ids of a list that compiled code reads: less than that."""

_VALUES_OF_AN_EVENT: Final = 64
"""Making an event takes as long as reading so many numbers of a list,"""
_VALUES_OF_A_FIELD: Final = 8
"""and finding one of its fields as long as so many."""

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
        yield None  # msgpack has copied it all
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

    @property
    def _at(self) -> int:
        at: int = self._unpacker.tell()
        return at

    def end(self) -> None:
        """ValueError if there is more."""
        if self._at != len(self._payload):
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
        at = self._at
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
        yield from self.spend(_VALUES_OF_A_FIELD)
        return self._unpacker.unpack()

    def _items(self, count: int, depth: int) -> Steps:
        if depth:
            items: list[Any] = []
            while len(items) < count:
                item = yield from self.value(depth - 1)
                items.append(item)
            return items
        return (yield from self._flat_items(count))

    def _flat_items(self, count: int) -> Steps:
        """A list's values; those of many token ids as an array, because to let go of a list of
        300,000 numbers takes 3 ms at once."""
        unpack = self._unpacker.unpack
        found: list[Any] | array[int] = array(TYPE_CODE) if count > VALUES_PER_STEP else []
        if isinstance(found, array) and is_compiled(numbers.unpack):
            found = yield from self._ids(count)
        while len(found) < count:
            wanted = min(count - len(found), VALUES_PER_STEP - self._spent)
            read = [unpack() for _ in range(wanted)]
            if isinstance(found, array):
                found = _extended(found, read)
            else:
                found += read
            yield from self.spend(wanted)
        return found

    def _ids(self, count: int) -> Generator[None, None, array[int]]:
        """As many as there are, up to `count`, before something else comes."""
        at = self._at
        count = min(count, len(self._payload) - at)
        found = array(TYPE_CODE, [0]) * count
        yield from self.spend(VALUES_PER_STEP)
        packed, cells = np.frombuffer(self._payload, np.uint8), np.frombuffer(found, np.uint32)
        done = 0
        while done < count:
            stop = min(done + IDS_PER_STEP, count)
            end = numbers.unpack(packed, at, cells, done, stop)
            if end < 0:
                break
            self._unpacker.read_bytes(end - at)
            at, done = end, stop
            yield from self.spend(VALUES_PER_STEP)
        return found if done == count else found[:done]


def _extended(found: array[int], read: list[Any]) -> list[Any] | array[int]:
    """A list from where on there is something else than token ids."""
    try:
        found.fromlist(read)
    except (TypeError, OverflowError):
        return [*found, *read]
    return found


def _is_array(first: int) -> bool:
    return first & 0xF0 == 0x90 or first in (0xDC, 0xDD)


def _is_map(first: int) -> bool:
    return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)
