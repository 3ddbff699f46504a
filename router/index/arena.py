"""The memory of the index: rows of 16 entries, handed out to tables and taken back.

Everything that grows with the number of blocks lives here, in four flat arrays, so an entry costs
18 bytes and its share of unused slots instead of the hundred and more of a dict with its objects.
All tables draw from one arena, so what one gives back another can use.
"""

from __future__ import annotations

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
_RESERVE_SHARE: Final = 1 / 16
_RESERVE_AT_LEAST: Final = 32 * 1024


class ArenaFull(Exception):
    """The bound is reached: there is no row left."""


class Arena:
    """`max_bytes` bounds what the rows take. A slot is a number: row x 16 + place in the row.

    A key of 0 means that a slot is free. `key_bytes` is the same memory as `keys`: searching a
    row as bytes is the fastest way to find one key.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._for_rows = max_bytes - max(int(max_bytes * _RESERVE_SHARE), _RESERVE_AT_LEAST)
        self.overhead = 0
        """What the users of the arena take outside of it, as they tell it."""
        self._rows = 0
        self._free: list[int] = []
        self.key_bytes = bytearray()
        self._value_bytes = bytearray()
        self._depth_bytes = bytearray()
        self._level_bytes = bytearray()
        self._spill_bytes = bytearray()
        self._bind()

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
            self._grow(max(missing, _GROW_ROWS, self._rows // _GROW_SHARE))
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
        self._unbind()
        self.key_bytes += bytes(ROW_KEY_BYTES * count)
        self._value_bytes += bytes(ROW_KEY_BYTES * count)
        self._depth_bytes += bytes(2 * ROW_SLOTS * count)
        self._level_bytes += bytes(count)
        self._spill_bytes += bytes(count)
        self._bind()
        self._free.extend(range(self._rows + count - 1, self._rows - 1, -1))
        self._rows += count

    def _bind(self) -> None:
        """Look at the bytes as arrays (bytes that are looked at cannot grow)."""
        self.keys = np.frombuffer(self.key_bytes, np.uint64)
        self.rows = self.keys.reshape(-1, ROW_SLOTS)
        self.values = np.frombuffer(self._value_bytes, np.uint64)
        self.depths = np.frombuffer(self._depth_bytes, np.uint16)
        self.levels = np.frombuffer(self._level_bytes, np.uint8)
        self.spilled = np.frombuffer(self._spill_bytes, np.uint8)
        self.value_cells = memoryview(self._value_bytes).cast("Q")
        self.depth_cells = memoryview(self._depth_bytes).cast("H")
        self.key_cells = memoryview(self.key_bytes).cast("Q")

    def _unbind(self) -> None:
        for cells in (self.value_cells, self.depth_cells, self.key_cells):
            cells.release()
        del self.keys, self.rows, self.values, self.depths, self.levels, self.spilled
        del self.value_cells, self.depth_cells, self.key_cells
