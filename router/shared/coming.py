"""Prefixes that all processes of a host have in flight, in memory that they share.

Each process has a shelf of entries that only it writes: the first block's hash, where the prefix
went, how long it is, its last hash, and every eighth hash of it. Whoever asks compares hashes, so
an entry that is read while it is written matches too little, never too much. First hashes lie
together, so that one look over some KiB finds all prefixes that may have something in common.
"""

import mmap
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from router.blocks import BlockHash
from router.index import neighbours
from router.index.reservations import Reservation
from router.index.residency import STRIDE

ENTRIES: Final = 128
"""Most distinct prefixes in flight that one process tells of."""
MARKS: Final = 256
"""Hashes of one prefix: what is behind 2048 blocks is not told."""
_ENTRY: Final = neighbours.MARKS_AT + MARKS
_WORD_BYTES: Final = 8
_REPLICAS: Final = 1024


class ComingBoard:
    """One process' view of all shelves. `row`s are replicas' numbers, the same for everybody."""

    def __init__(self, path: Path, slot: int, processes: int, slots: int) -> None:
        size = slots * ENTRIES * (1 + _ENTRY) * _WORD_BYTES
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)
        self._words = memoryview(self._memory).cast("Q")
        # the first hash of every entry (0: it is free), then the entries
        self._entries_at = slots * ENTRIES
        all_words = np.frombuffer(self._memory, np.uint64)
        self._roots = all_words[: processes * ENTRIES]
        self._entries = all_words[self._entries_at :].reshape(slots * ENTRIES, _ENTRY)
        self._found = np.empty((_REPLICAS, 2), np.int64)
        self._own = range(slot * ENTRIES, (slot + 1) * ENTRIES)
        self._free = list(self._own)
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
            self._write(entry, reservation.prefix, row)

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
        self._words[entry] = 0
        self._free.append(entry)

    def expected(self, prefix: Sequence[BlockHash]) -> dict[int, int]:
        """Leading blocks of `prefix` that the others have in flight, by row."""
        hashes = prefix if isinstance(prefix, array) else array("Q", prefix)
        words, own, found = np.frombuffer(hashes, np.uint64), self._own, self._found
        count = neighbours.expected(self._roots, self._entries, words, own.start, own.stop, found)
        return dict(found[:count].tolist()) if count else {}

    def clear(self, slot: int) -> None:
        """A process ended: nothing comes of what it had sent."""
        roots = slice(slot * ENTRIES, (slot + 1) * ENTRIES)
        self._words[roots] = array("Q", bytes(ENTRIES * _WORD_BYTES))

    def close(self) -> None:
        self._words.release()
        del self._roots, self._entries
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _write(self, entry: int, prefix: Sequence[BlockHash], row: int) -> None:
        marks = prefix[STRIDE - 1 : STRIDE * MARKS : STRIDE]
        words = array("Q", (row, len(prefix), prefix[-1], *marks))
        at = self._entries_at + entry * _ENTRY
        self._words[at : at + len(words)] = words
        # last: with it the entry counts
        self._words[entry] = prefix[0]
