"""The memory of the index: rows of 16 entries, handed out to tables and taken back.

Everything that grows with the number of blocks lives here, in flat arrays, so an entry costs
18 bytes and its share of unused slots instead of the hundred and more of a dict with its objects.
All tables draw from one arena, so what one gives back another can use.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Slots: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

ROW_SLOTS: Final = 16
ROW_KEY_BYTES: Final = 8 * ROW_SLOTS
ROW_BYTES: Final = (8 + 8 + 2) * ROW_SLOTS + 2
_GROW_ROWS: Final = 256
_GROW_SHARE: Final = 12
_GROW_ROWS_AT_MOST: Final = 4096
_HUGE_FROM_ROWS: Final = 16_384
"""From here on (4 MiB) the memory is asked for in pages of 2 MiB: entries lie anywhere, and with
small pages half of the time of a look goes into finding the page."""
_RESERVE_SHARE: Final = 1 / 16
_RESERVE_AT_LEAST: Final = 32 * 1024


class ArenaFull(Exception):
    """The bound is reached: there is no row left."""


class Arena:
    """`max_bytes` bounds what the rows take. A slot is a number: row x 16 + place in the row.

    A key of 0 means that a slot is free. `key_bytes` is the same memory as `keys`: searching a
    row as bytes is the fastest way to find one key. Addresses for all of it are
    reserved at the start, so growing moves nothing; what was never used takes no memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._for_rows = max_bytes - max(int(max_bytes * _RESERVE_SHARE), _RESERVE_AT_LEAST)
        self.overhead = 0
        """What the users of the arena take outside of it, as they tell it."""
        self._rows = 0
        self._free: list[int] = []
        most = max_bytes // ROW_BYTES + 1
        self.key_bytes, values, depths, levels, spilled = self._memory = [
            _reserve(size * most) for size in (ROW_KEY_BYTES, ROW_KEY_BYTES, 2 * ROW_SLOTS, 1, 1)
        ]
        self.keys = np.frombuffer(self.key_bytes, np.uint64)
        self.rows = self.keys[: most * ROW_SLOTS].reshape(most, ROW_SLOTS)
        self.values = np.frombuffer(values, np.uint64)
        self.depths = np.frombuffer(depths, np.uint16)
        self.levels = np.frombuffer(levels, np.uint8)
        self.spilled = np.frombuffer(spilled, np.uint8)
        self.key_cells = memoryview(self.key_bytes).cast("Q")
        self.value_cells = memoryview(values).cast("Q")
        self.depth_cells = memoryview(depths).cast("H")

    @property
    def bytes(self) -> int:
        """What is taken, free rows included."""
        return self._rows * ROW_BYTES + self.overhead

    @property
    def free_rows(self) -> int:
        """Rows that can still be handed out."""
        return max(0, (self._for_rows - self.bytes) // ROW_BYTES) + len(self._free)

    @property
    def is_full(self) -> bool:
        """Has even half of the reserve for what is not in rows been used up?"""
        return 2 * self.bytes > self._for_rows + self.max_bytes

    def charge(self, count: int) -> None:
        """Count bytes of a user; ArenaFull if there is no room for them."""
        if self.bytes + count > self.max_bytes:
            raise ArenaFull
        self.overhead += count

    def take(self, count: int) -> Slots:
        """Rows without entries. ArenaFull if there are not so many."""
        if count > self.free_rows:
            raise ArenaFull
        missing = count - len(self._free)
        if missing > 0:
            usual = min(self._rows // _GROW_SHARE, _GROW_ROWS_AT_MOST)
            self._grow(max(missing, _GROW_ROWS, usual))
        taken = self._free[-count:]
        del self._free[-count:]
        return np.array(taken, np.int64)

    def give_back(self, rows: Slots) -> None:
        """Empty these rows; any table may have them next."""
        self.rows[rows] = 0
        self.spilled[rows] = 0
        self._free.extend(rows.tolist())

    def copy(self, source: Slots, target: Slots) -> None:
        """Copy entries from slot to slot."""
        self.keys[target] = self.keys[source]
        self.values[target] = self.values[source]
        self.depths[target] = self.depths[source]

    def _grow(self, count: int) -> None:
        count = min(count, (self._for_rows - self.bytes) // ROW_BYTES)
        if self._rows < _HUGE_FROM_ROWS <= self._rows + count:
            for memory in self._memory:
                _ask_for_huge_pages(memory)
        self._free.extend(range(self._rows + count - 1, self._rows - 1, -1))
        self._rows += count


def _reserve(size: int) -> mmap.mmap:
    """Addresses of so many zeros, which take memory when they are first written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, flags=flags)


def _ask_for_huge_pages(memory: mmap.mmap) -> None:
    """Where the system has them (Linux; it may be told not to give any)."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
