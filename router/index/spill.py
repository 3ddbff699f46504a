"""Entries of full rows, until many rows are split: in slots of rows that no key leads to."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.index.arena import ROW_SLOTS, Arena, Flags, Keys, Slots
from router.index.directory import Directory

Lifted: TypeAlias = tuple[Keys, Keys, NDArray[np.uint16]]
"""Keys, values and depths of entries that are in no slot for a while."""

_SPILLED_BYTES: Final = 120  # of an entry of the dict, about
_HAS_SPILLED: Final = 1
_IS_SPILL: Final = 2


class Spill:
    """Key → slot. Rows whose entries are here are marked in the arena. ArenaFull: no row left."""

    __slots__ = ("_arena", "_directory", "_free", "_rows", "slots")

    def __init__(self, arena: Arena, directory: Directory) -> None:
        self._arena = arena
        self._directory = directory
        self.slots: dict[int, int] = {}
        self._free: list[int] = []
        self._rows: list[int] = []

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def rows(self) -> Slots:
        """The rows that its slots are in."""
        return np.array(self._rows, np.int64)

    def is_marked(self, rows: Slots) -> Flags:
        """Which of these rows may have more entries here?"""
        marked: Flags = self._arena.spilled.take(rows) != 0
        return marked

    def has(self, slots: Slots) -> Flags:
        """Which of these slots are here?"""
        is_here: Flags = self._arena.spilled.take(slots // ROW_SLOTS) == _IS_SPILL
        return is_here

    def add(self, key: int) -> int:
        """A new key's slot."""
        arena = self._arena
        if not self._free:
            self._take_row()
        slot = self._free.pop()
        arena.key_cells[slot] = key
        arena.spilled[self._directory.cells[key >> self._directory.shift]] = _HAS_SPILLED
        self.slots[key] = slot
        arena.overhead += _SPILLED_BYTES
        return slot

    def add_all(self, keys: Keys) -> list[int]:
        """`add` for keys that are nowhere yet, once each."""
        arena, count = self._arena, len(keys)
        while len(self._free) < count:
            self._take_row()
        slots = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        arena.keys[slots] = keys
        arena.spilled[self._directory.rows_of(keys)] = _HAS_SPILLED
        self.slots.update(zip(keys.tolist(), slots, strict=True))
        arena.overhead += _SPILLED_BYTES * count
        return slots

    def drop(self, key: int, slot: int) -> None:
        """A key's slot was freed; if it is here, it may be had again."""
        if self.slots.get(key) == slot:
            del self.slots[key]
            self._free.append(slot)
            self._arena.overhead -= _SPILLED_BYTES

    def lift(self) -> Lifted:
        """Take all entries out. Their slots can be had again at once."""
        arena, count = self._arena, len(self.slots)
        keys = np.fromiter(self.slots, np.uint64, count)
        slots = np.fromiter(self.slots.values(), np.int64, count)
        lifted = keys, arena.values[slots], arena.depths[slots]
        self.slots = {}
        self._free.extend(slots.tolist())
        arena.keys[slots] = 0
        arena.spilled[self._directory.rows_of(keys)] = 0
        arena.overhead -= _SPILLED_BYTES * count
        return lifted

    def dismantle(self) -> None:
        """Give its rows back."""
        self._arena.give_back(self.rows)
        self._arena.overhead -= _SPILLED_BYTES * len(self.slots)
        self.slots = {}

    def _take_row(self) -> None:
        row = int(self._arena.take(1)[0])
        self._rows.append(row)
        self._arena.spilled[row] = _IS_SPILL
        self._free.extend(range(row * ROW_SLOTS, (row + 1) * ROW_SLOTS))
