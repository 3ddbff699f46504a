"""A map from 64-bit keys to a value and a depth, in rows of the arena.

A full row has to be split. To split many rows at once, which numpy does well, entries of full rows
wait in a small dict (`_spill`) for the next splitting, in slots of rows that no key leads to.

Keys must be spread evenly (hashes). Each operation exists for one key and for an array of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from router.index.arena import ROW_KEY_BYTES, ROW_SLOTS, Arena, ArenaFull, Flags, Keys, Slots
from router.index.directory import Directory

ABSENT: Final = -1

_SPILLED_BYTES: Final = 120  # of an entry of the dict, about
_SPILL_AT_LEAST: Final = 32
_SPILL_SHARE: Final = 128
_HAS_SPILLED: Final = 1
_IS_SPILL: Final = 2
_FREE: Final = bytes(8)
_NOTHING: Final = np.uint64(0)


class Table:
    """Slots by key; what a slot holds beside the key is read and written in the arena.

    ArenaFull if the arena has no row left for something new.
    """

    __slots__ = ("_arena", "_directory", "_spill", "_spill_free", "_spill_rows", "count")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._directory = Directory(arena)
        self._spill: dict[int, int] = {}
        self._spill_free: list[int] = []
        self._spill_rows: list[int] = []
        self.count = 0

    def find(self, key: int) -> int:
        """A key's slot, or ABSENT."""
        directory = self._directory
        low = directory.cells[key >> directory.shift] * ROW_KEY_BYTES
        high = low + ROW_KEY_BYTES
        wanted, search = key.to_bytes(8, "little"), self._arena.key_bytes.find
        at = search(wanted, low, high)
        while at & 7 and at >= 0:  # found across the border of two keys
            at = search(wanted, (at | 7) + 1, high)
        if at >= 0:
            return at >> 3
        return self._spill.get(key, ABSENT) if self._spill else ABSENT

    def insert(self, key: int) -> int:
        """A new key's slot; the key must be absent."""
        directory = self._directory
        low = directory.cells[key >> directory.shift] * ROW_KEY_BYTES
        high = low + ROW_KEY_BYTES
        search = self._arena.key_bytes.find
        at = search(_FREE, low, high)
        while at & 7 and at >= 0:
            at = search(_FREE, (at | 7) + 1, high)
        if at < 0:
            slot = self._spill_one(key)
            self.count += 1
            return self.find(key) if self._split_when_due() else slot
        self._arena.key_cells[at >> 3] = key
        self.count += 1
        return at >> 3

    def delete(self, slot: int) -> None:
        """Free a slot that holds a key."""
        cells = self._arena.key_cells
        key, cells[slot] = cells[slot], 0
        self.count -= 1
        if self._spill:
            self._unspill(key, slot)

    def find_many(self, keys: Keys) -> Slots:
        """Each key's slot, or ABSENT."""
        arena = self._arena
        rows = self._directory.rows_of(keys)
        slots: Slots = rows * ROW_SLOTS + (arena.rows[rows] == keys[:, None]).argmax(axis=1)
        absent = arena.keys[slots] != keys
        if absent.any():
            slots[absent] = ABSENT
            if self._spill:
                self._find_spilled(keys, slots, absent & (arena.spilled[rows] != 0))
        return slots

    def upsert_many(self, keys: Keys) -> tuple[Slots, Flags]:
        """Each key's slot, and whether it is new. Keys must be there once each.

        ArenaFull: none was inserted. What a new slot holds beside its key is left over from
        before.
        """
        arena = self._arena
        rows = self._directory.rows_of(keys)
        held = arena.rows[rows]
        slots = rows * ROW_SLOTS + (held == keys[:, None]).argmax(axis=1)
        absent = arena.keys[slots] != keys
        if self._spill and absent.any():
            slots[absent] = ABSENT
            self._find_spilled(keys, slots, absent & (arena.spilled[rows] != 0))
            absent = slots == ABSENT
        if absent.all():
            places = rows * ROW_SLOTS + (held == _NOTHING).argmax(axis=1)
            self._insert_many(keys, np.arange(len(keys)), places, slots)
        elif absent.any():
            left = np.flatnonzero(absent)
            self._insert_many(keys, left, self._places(keys[left]), slots)
        return slots, absent

    def delete_many(self, slots: Slots) -> None:
        """Free slots that hold keys."""
        keys = self._arena.keys[slots]
        self._arena.keys[slots] = 0
        self.count -= len(slots)
        if self._spill:
            waited = self._arena.spilled[slots // ROW_SLOTS] == _IS_SPILL
            for key, slot in zip(keys[waited].tolist(), slots[waited].tolist(), strict=True):
                self._unspill(key, slot)

    def chunks(self, cells: int) -> Iterator[Slots]:
        """The slots that hold keys, of so many of the directory's cells at a time.

        The table may change between two chunks; nothing that stays in it is missed, because
        entries move from where they waited to their rows, and from rows to later ones.
        """
        yield self._held_in(np.array(self._spill_rows, np.int64))
        for rows in self._directory.chunks(cells):
            yield self._held_in(rows)

    def dismantle(self, cells: int) -> Iterator[Slots]:
        """`chunks`, giving each back when the next is asked for. The table is gone after it."""
        for rows in self._directory.chunks(cells):
            yield self._held_in(rows)
            self._arena.give_back(rows)
        spilled = np.array(self._spill_rows, np.int64)
        yield self._held_in(spilled)
        self._arena.give_back(spilled)
        self._arena.overhead -= _SPILLED_BYTES * len(self._spill)
        self._directory.drop()

    def merge(self) -> Iterator[int]:
        """Give back rows whose entries fit into their neighbours'; yields rows looked at."""
        return self._directory.merge()

    def _held_in(self, rows: Slots) -> Slots:
        at, place = np.nonzero(self._arena.rows[rows])
        slots: Slots = rows[at] * ROW_SLOTS + place
        return slots

    def _insert_many(self, keys: Keys, left: Slots, places: Slots, slots: Slots) -> None:
        """Find slots for the keys at `left`; `places` are those to try first."""
        wanted, has_split = left, False
        slots[left] = ABSENT
        try:
            while len(left):
                self._place_all(keys, left, places, slots)
                left = left[slots[left] == ABSENT]
                if len(left) <= _SPILL_AT_LEAST or not self._split_for(keys[left]):
                    break
                has_split, places = True, self._places(keys[left])
            for number in left.tolist():
                slots[number] = self._spill_one(int(keys[number]))
        except ArenaFull:
            self._take_back(keys[wanted])
            raise
        self.count += len(wanted)
        if len(left) and self._split_when_due():
            slots[:] = self.find_many(keys)
        elif has_split:
            self._follow_splits(keys, slots)

    def _follow_splits(self, keys: Keys, slots: Slots) -> None:
        """Put right where the keys are: an entry keeps its place when it moves to another row."""
        homes = self._directory.rows_of(keys) * ROW_SLOTS + slots % ROW_SLOTS
        moved = self._arena.keys[homes] == keys
        slots[moved] = homes[moved]

    def _take_back(self, keys: Keys) -> None:
        slots = self.find_many(keys)
        slots = slots[slots != ABSENT]
        self.count += len(slots)
        self.delete_many(slots)

    def _split_for(self, keys: Keys) -> bool:
        """Split the full rows that these keys should be in. False: none can be."""
        rows = self._full(self._directory.splittable(np.unique(self._directory.rows_of(keys))))
        self._directory.split(rows)
        return len(rows) > 0

    def _place_all(self, keys: Keys, left: Slots, places: Slots, slots: Slots) -> None:
        """Put keys into their rows' free slots, as many as fit.

        Keys of one row want the same place; the losers try again. Nearly all win within four
        rounds, so that is cheaper than to sort them by rows.
        """
        left = self._place(keys, left, places, slots)
        while len(left):
            left = self._place(keys, left, self._places(keys[left]), slots)

    def _places(self, keys: Keys) -> Slots:
        """A free slot for each key, if its row has one."""
        rows = self._directory.rows_of(keys)
        places: Slots = rows * ROW_SLOTS + (self._arena.rows[rows] == _NOTHING).argmax(axis=1)
        return places

    def _place(self, keys: Keys, left: Slots, places: Slots, slots: Slots) -> Slots:
        """Put keys into free places; returns those whose place another of them got."""
        cells = self._arena.keys
        fits = cells[places] == _NOTHING
        if not fits.all():
            left, places = left[fits], places[fits]
        wanted = keys[left]
        cells[places] = wanted
        won = cells[places] == wanted
        slots[left[won]] = places[won]
        lost: Slots = left[~won]
        return lost

    def _spill_one(self, key: int) -> int:
        arena = self._arena
        if not self._spill_free:
            row = int(arena.take(1)[0])
            self._spill_rows.append(row)
            arena.spilled[row] = _IS_SPILL
            self._spill_free.extend(range(row * ROW_SLOTS, (row + 1) * ROW_SLOTS))
        slot = self._spill_free.pop()
        arena.key_cells[slot] = key
        arena.spilled[self._directory.cells[key >> self._directory.shift]] = _HAS_SPILLED
        self._spill[key] = slot
        arena.overhead += _SPILLED_BYTES
        return slot

    def _unspill(self, key: int, slot: int) -> None:
        if self._spill.get(key) == slot:
            del self._spill[key]
            self._spill_free.append(slot)
            self._arena.overhead -= _SPILLED_BYTES

    def _find_spilled(self, keys: Keys, slots: Slots, maybe: Flags) -> None:
        for number in np.flatnonzero(maybe).tolist():
            slots[number] = self._spill.get(int(keys[number]), ABSENT)

    def _split_when_due(self) -> bool:
        """Split the rows that overflowed, if enough wait for it. True: slots may have changed."""
        if len(self._spill) <= _SPILL_AT_LEAST + self.count // _SPILL_SHARE:
            return False
        keys = np.fromiter(self._spill, np.uint64, len(self._spill))
        try:
            self._split_for(keys)
        except ArenaFull:
            return False
        self._place_spilled(keys)
        return True

    def _full(self, rows: Slots) -> Slots:
        full: Slots = rows[self._arena.rows[rows].all(axis=1)]
        return full

    def _place_spilled(self, keys: Keys) -> None:
        arena = self._arena
        source = np.fromiter(self._spill.values(), np.int64, len(self._spill))
        target = np.full(len(keys), ABSENT, np.int64)
        self._place_all(keys, np.arange(len(keys)), self._places(keys), target)
        moved = target != ABSENT
        arena.copy(source[moved], target[moved])
        arena.keys[source[moved]] = 0
        stayed = ~moved
        self._spill = dict(zip(keys[stayed].tolist(), source[stayed].tolist(), strict=True))
        self._spill_free.extend(source[moved].tolist())
        arena.overhead -= _SPILLED_BYTES * int(moved.sum())
        arena.spilled[self._directory.rows_of(keys)] = 0
        arena.spilled[self._directory.rows_of(keys[stayed])] = _HAS_SPILLED
