"""Extendible hashing: which row a key is in, by its leading bits.

A row of level n holds the keys that share its first n bits, and 2**(bits - n) neighbouring cells
of the directory name it. Splitting a row halves what it stands for; the directory doubles when it
has no bit left to tell two rows apart. So a table grows and shrinks by rows, and never copies
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from router.index.arena import ROW_SLOTS, Arena, Keys, Slots

CELL_BYTES: Final = 4
MAX_LEVEL: Final = 26

_MERGE_UP_TO: Final = 14
_USUAL_FILL: Final = 8
_MERGES_PER_STEP: Final = 128
_ONE: Final = np.uint64(1)


class Directory:
    """The rows of one table. ArenaFull if no row is left."""

    __slots__ = ("_arena", "_bits", "_cells", "_shift_many", "cells", "shift")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._cells: NDArray[np.uint32] = np.empty(0, np.uint32)
        rows = arena.take(2)
        arena.levels[rows] = 1
        self._point(rows.astype(np.uint32), 1)

    def rows_of(self, keys: Keys) -> Slots:
        """The row of each key. (For one key: `cells[key >> shift]`.)"""
        # `take` of signed places is three times as fast as an index of unsigned ones
        rows: Slots = self._cells.take((keys >> self._shift_many).view(np.int64)).astype(np.int64)
        return rows

    def presize(self, keys: int) -> None:
        """Have as many rows as so many keys need. The table must be empty. ArenaFull."""
        bits = min(MAX_LEVEL, max(1, (keys // _USUAL_FILL).bit_length()))
        if bits <= self._bits:
            return
        fresh = self._arena.take((1 << bits) - 2)
        rows = np.concatenate((self._cells[[0, -1]].astype(np.int64), fresh))
        self._arena.levels[rows] = bits
        self._point(rows.astype(np.uint32), bits)

    def splittable(self, rows: Slots) -> Slots:
        """Those of the rows that still may be split."""
        chosen: Slots = rows[self._arena.levels[rows] < MAX_LEVEL]
        return chosen

    def split(self, rows: Slots) -> None:
        """Give each row's entries with the next bit set to a new row. The rows must be full."""
        if not len(rows):
            return
        arena = self._arena
        levels = arena.levels[rows].astype(np.uint64)
        if int(levels.max()) == self._bits:
            self._point(np.repeat(self._cells, 2), self._bits + 1)
        fresh = arena.take(len(rows))
        keys = arena.rows.take(rows, 0)
        # the next bit as 0 or all ones: times the key, without a branch
        going = keys & -((keys >> (np.uint64(63) - levels)[:, None]) & _ONE)
        arena.rows[fresh] = going
        arena.rows[rows] = keys ^ going
        for column in (arena.values, arena.depths):
            by_row = column.reshape(-1, ROW_SLOTS)
            by_row[fresh] = by_row.take(rows, 0)
        arena.levels[rows] += 1
        arena.levels[fresh] = arena.levels[rows]
        arena.spilled[fresh] = arena.spilled[rows]
        self._redirect(fresh, keys[:, 0] >> (np.uint64(64) - levels), levels)

    def chunks(self, cells: int) -> Iterator[Slots]:
        """All rows, from so many cells of the directory at a time.

        The table may change between two chunks; rows that a split has made since may be missed.
        """
        index, bits = 0, self._bits
        while index < 1 << bits:
            index, bits = index << (self._bits - bits), self._bits
            part = self._cells[index : index + cells]
            begins = np.flatnonzero(part[1:] != part[:-1]) + 1
            rows = part[np.concatenate(([0], begins))].astype(np.int64)
            index += cells
            yield rows

    def merge(self) -> Iterator[int]:
        """Give back rows whose entries fit into their neighbours'; yields rows looked at."""
        index, bits, seen = 0, self._bits, 0
        while index < 1 << bits:
            index, bits = index << (self._bits - bits), self._bits
            row = int(self._cells[index])
            level = int(self._arena.levels[row])
            span = 1 << (bits - level)
            if level > 1 and not index & span and self._merge_at(index, span):
                index &= ~(2 * span - 1)
            else:
                index += span
            seen += 1
            if seen % _MERGES_PER_STEP == 0:
                yield _MERGES_PER_STEP

    def drop(self) -> None:
        """The cells are needed no longer; the rows are the caller's to give back."""
        self._arena.overhead -= CELL_BYTES * len(self._cells)
        self._cells = np.empty(0, np.uint32)

    def _point(self, cells: NDArray[np.uint32], bits: int) -> None:
        self._arena.charge(CELL_BYTES * (len(cells) - len(self._cells)))
        self._cells = cells
        self.cells = cells.data
        self._bits = bits
        self.shift = 64 - bits
        self._shift_many = np.uint64(64 - bits)

    def _redirect(self, fresh: Slots, prefixes: Keys, levels: Keys) -> None:
        """Point the upper half of each split row's cells at its new row."""
        halves = (_ONE << (np.uint64(self._bits - 1) - levels)).view(np.int64)
        starts = (prefixes.view(np.int64) * 2 + 1) * halves
        before = halves.cumsum() - halves
        cells = np.repeat(starts - before, halves)
        cells += np.arange(len(cells))
        self._cells[cells] = np.repeat(fresh, halves)

    def _merge_at(self, index: int, span: int) -> bool:
        arena = self._arena
        row, other = int(self._cells[index]), int(self._cells[index + span])
        if arena.levels[other] != arena.levels[row]:
            return False
        ours, theirs = arena.rows[row], arena.rows[other]
        moving = np.flatnonzero(theirs)
        if np.count_nonzero(ours) + len(moving) > _MERGE_UP_TO:
            return False
        target = row * ROW_SLOTS + np.flatnonzero(ours == 0)[: len(moving)]
        arena.copy(other * ROW_SLOTS + moving, target)
        self._cells[index + span : index + 2 * span] = row
        arena.levels[row] -= 1
        arena.spilled[row] |= arena.spilled[other]
        arena.give_back(np.array([other]))
        return True
