"""Prefixes that all processes of a host have in flight, in memory that they share.

Each process has a shelf of entries that only it writes: the first block's hash, where the prefix
went, how long it is, its last hash, and every eighth hash of it. Whoever asks compares hashes, so
an entry that is read while it is written matches too little, never too much. First hashes lie
together, so that one look over some KiB finds all prefixes that may have something in common.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from types import TracebackType
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
_PLACE: Final = Struct("3Q")
"""Of an entry, what is before its marks."""
_REPLICAS: Final = 1024
_SHELF: Final = ENTRIES * _WORD_BYTES


class Turn:
    """A lock on a file, until the `with` block ends."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


class ComingBoard:
    """One process' view of all shelves. `row`s are replicas' numbers, the same for everybody."""

    def __init__(self, path: Path, slot: int, processes: int, slots: int) -> None:
        size = (slots * ENTRIES * (1 + _ENTRY) + slots) * _WORD_BYTES
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)
        self._words = memoryview(self._memory).cast("Q")
        # the first hash of every entry (0: it is free), then the entries, then for each slot how
        # many prefixes it has ever begun
        self._entries_at = slots * ENTRIES
        begun_at = slots * ENTRIES * (1 + _ENTRY)
        self._begun = self._words[begun_at : begun_at + processes]
        self._slot = slot
        all_words = np.frombuffer(self._memory, np.uint64)
        self._roots = all_words[: processes * ENTRIES]
        self._entries = all_words[self._entries_at : begun_at].reshape(slots * ENTRIES, _ENTRY)
        self._found = np.empty((_REPLICAS, 2), np.int64)
        self._own = range(slot * ENTRIES, (slot + 1) * ENTRIES)
        every = memoryview(self._memory)[: processes * _SHELF]
        self._others = [every[: slot * _SHELF], every[(slot + 1) * _SHELF :]]
        """Bytes in which first hashes are others'."""
        self._others = [part for part in self._others if part]
        self._free = list(self._own)
        self._placed: dict[tuple[int, BlockHash], tuple[int, int]] = {}
        """Entry and number of requests, by row and last hash."""
        self.clear(slot)

    @property
    def begun(self) -> int:
        """So many requests with a prefix were sent so far, by all processes. O(processes)."""
        return sum(self._begun)

    def turn(self) -> Turn | None:
        """Until it ends no other process has one; None: another one has it. Whoever is killed has
        none any more."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        return Turn(self._file)

    def count(self) -> None:
        """A request with a prefix is sent."""
        self._begun[self._slot] += 1

    def place(self, reservation: Reservation, row: int) -> None:
        """Its prefix is coming. Beyond `ENTRIES` distinct ones nothing is told. O(blocks / 8)."""
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
        if not self._may_have(prefix[0]):
            return {}
        hashes = prefix if isinstance(prefix, array) else array("Q", prefix)
        words, own, found = np.frombuffer(hashes, np.uint64), self._own, self._found
        count = neighbours.expected(self._roots, self._entries, words, own.start, own.stop, found)
        return dict(found[:count].tolist()) if count else {}

    def _may_have(self, root: BlockHash) -> bool:
        """Does another one have something that begins so? Searching bytes is no more than that, and
        most often nobody has. Of a copy: memory's own search takes five times as long."""
        sought = root.to_bytes(_WORD_BYTES, sys.byteorder)
        for part in self._others:  # noqa: SIM110  a generator takes as long as the search
            if sought in part.tobytes():
                return True
        return False

    def clear(self, slot: int) -> None:
        """A process ended: nothing comes of what it had sent."""
        roots = slice(slot * ENTRIES, (slot + 1) * ENTRIES)
        self._words[roots] = array("Q", bytes(ENTRIES * _WORD_BYTES))

    def close(self) -> None:
        for part in self._others:
            part.release()
        self._begun.release()
        self._words.release()
        del self._roots, self._entries
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _write(self, entry: int, prefix: Sequence[BlockHash], row: int) -> None:
        hashes = prefix if isinstance(prefix, array) else array("Q", prefix)
        marks = memoryview(hashes)[STRIDE - 1 : STRIDE * MARKS : STRIDE]
        at = self._entries_at + entry * _ENTRY
        _PLACE.pack_into(self._memory, at * _WORD_BYTES, row, len(hashes), hashes[-1])
        at += neighbours.MARKS_AT
        self._words[at : at + len(marks)] = marks
        # last: with it the entry counts
        self._words[entry] = prefix[0]
