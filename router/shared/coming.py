"""Prefixes that all processes of a host have in flight, in memory that they share.

Each process has a shelf of entries that only it writes: the first block's hash, where the prefix
went, how long it is, its last hash, and every eighth hash of it. Whoever asks compares hashes, so
an entry that is read while it is written matches too little, never too much.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.blocks import BlockHash
from router.index.reservations import Reservation
from router.index.residency import STRIDE

Words: TypeAlias = NDArray[np.uint64]

ENTRIES: Final = 128
"""Most distinct prefixes in flight that one process tells of."""
MARKS: Final = 256
"""Hashes of one prefix: what is behind 2048 blocks is not told."""
_HEAD: Final = 4
_ROOT, _ROW, _BLOCKS, _LAST = range(_HEAD)
_ENTRY: Final = _HEAD + MARKS


class ComingBoard:
    """One process' view of all shelves. `row`s are replicas' numbers, the same for everybody."""

    def __init__(self, path: Path, slot: int, processes: int, slots: int) -> None:
        size = slots * ENTRIES * _ENTRY * 8
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)
        shelves: Words = np.frombuffer(self._memory, np.uint64).reshape(slots, ENTRIES, _ENTRY)
        self._shelves = shelves
        self._own = shelves[slot]
        self._others = [shelves[number] for number in range(processes) if number != slot]
        self._free = list(range(ENTRIES))
        self._placed: dict[tuple[int, BlockHash], tuple[int, int]] = {}
        """Entry and number of requests, by row and last hash."""
        self.clear(slot)

    def begin(self, reservation: Reservation, row: int) -> None:
        """A request is sent. Beyond `ENTRIES` distinct prefixes nothing is told. O(blocks / 8)."""
        key = row, reservation.prefix[-1]
        if key in self._placed:
            entry, count = self._placed[key]
            self._placed[key] = entry, count + 1
        elif self._free:
            entry = self._free.pop()
            self._placed[key] = entry, 1
            self._write(self._own[entry], reservation, row)

    def end(self, reservation: Reservation, row: int) -> None:
        """It is over."""
        key = row, reservation.prefix[-1]
        if key not in self._placed:
            return
        entry, count = self._placed[key]
        if count > 1:
            self._placed[key] = entry, count - 1
            return
        del self._placed[key]
        self._own[entry, _ROOT] = 0
        self._free.append(entry)

    def expected(self, prefix: Sequence[BlockHash]) -> dict[int, int]:
        """Leading blocks of `prefix` that the others have in flight, by row."""
        best: dict[int, int] = {}
        for shelf in self._others:
            for number in np.flatnonzero(shelf[:, _ROOT] == np.uint64(prefix[0])).tolist():
                entry = shelf[number]
                row, blocks = int(entry[_ROW]), _common(prefix, entry)
                best[row] = max(best.get(row, 0), blocks)
        return best

    def clear(self, slot: int) -> None:
        """A process ended: nothing comes of what it had sent."""
        self._shelves[slot, :, _ROOT] = 0

    def close(self) -> None:
        del self._shelves, self._own, self._others
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _write(self, entry: Words, reservation: Reservation, row: int) -> None:
        prefix = reservation.prefix
        marks = np.array(prefix[STRIDE - 1 :: STRIDE][:MARKS], np.uint64)
        entry[_HEAD : _HEAD + len(marks)] = marks
        entry[_ROW], entry[_BLOCKS], entry[_LAST] = row, len(prefix), np.uint64(prefix[-1])
        # last: with it the entry counts
        entry[_ROOT] = np.uint64(prefix[0])


def _common(prefix: Sequence[BlockHash], entry: Words) -> int:
    """Leading blocks in common, to within `STRIDE` where the prefixes part. The first is."""
    blocks = int(entry[_BLOCKS])
    if blocks <= len(prefix) and prefix[blocks - 1] == int(entry[_LAST]):
        return blocks
    low, high = 0, min(len(prefix) // STRIDE, blocks // STRIDE, MARKS)
    while low < high:
        middle = (low + high + 1) // 2
        if prefix[middle * STRIDE - 1] == int(entry[_HEAD + middle - 1]):
            low = middle
        else:
            high = middle - 1
    return low * STRIDE or 1
