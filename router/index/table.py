"""A map from 64-bit keys to a value and a depth, in rows of the arena.

A full row has to be split. To split many rows at once, which numpy does well, entries of full rows
wait for the next splitting (`spill`).

Keys must be spread evenly (hashes). Each operation exists for one key and for an array of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from router.index.arena import ROW_KEY_BYTES, ROW_SLOTS, Arena, ArenaFull, Flags, Keys, Slots
from router.index.directory import Directory
from router.index.places import free_places, once
from router.index.spill import Lifted, Spill

ABSENT: Final = -1

_SPILL_AT_LEAST: Final = 32
_SPILL_AT_MOST: Final = 1024
_SPILL_SHARE: Final = 256
_USUALLY_SPILLED: Final = 8  # one of so many keys finds its row full
_MANY: Final = 256
"""So many keys at a time are worth the splitting of rows for them alone."""
_FREE: Final = bytes(8)
_SLOT_BITS: Final = 4
_SLOT_MASK: Final = ROW_SLOTS - 1


class Table:
    """Slots by key; what a slot holds beside the key is read and written in the arena.

    ArenaFull if the arena has no row left for something new.
    """

    __slots__ = ("_arena", "_directory", "_spill", "count")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._directory = Directory(arena)
        self._spill = Spill(arena, self._directory)
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
        return self._spill.slots.get(key, ABSENT) if self._spill.slots else ABSENT

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
            slot = self._spill.add(key)
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
        if self._spill.slots:
            self._spill.drop(key, slot)

    def find_many(self, keys: Keys) -> Slots:
        """Each key's slot, or ABSENT."""
        rows = self._directory.rows_of(keys)
        return self._find_in(keys, rows, self._arena.rows.take(rows, 0))

    def upsert_many(self, keys: Keys) -> tuple[Slots, Flags]:
        """Each key's slot, and whether it is new (only once, of a key that comes several times).

        ArenaFull: none was inserted. What a new slot holds beside its key is anything.
        """
        if not self.count and len(keys) > ROW_SLOTS:
            self._directory.presize(len(keys))
        count = len(keys)
        is_due = len(self._spill) + count // _USUALLY_SPILLED > self._may_spill
        lifted = self._spill.lift() if self._spill.slots and count >= _MANY and is_due else None
        if lifted is not None:
            self.count -= len(lifted[0])
            keys = np.concatenate((keys, lifted[0]))
        slots: Slots = np.full(len(keys), ABSENT, np.int64)
        is_new: Flags = np.ones(len(keys), np.bool_)
        try:
            self._insert(keys, slots, is_new)
        except ArenaFull:
            is_placed = is_new[:count] & (slots[:count] != ABSENT)
            self.delete_many(self.find_many(keys[:count][is_placed]))
            if lifted is not None:
                self._put_back(lifted)
            raise
        if lifted is not None:
            self._fill_lifted(lifted, slots, is_new)
        elif self._split_when_due():
            return self.find_many(keys), is_new
        return slots[:count], is_new[:count]

    def delete_many(self, slots: Slots) -> None:
        """Free slots that hold keys."""
        if self._spill.slots:
            waited = slots[self._spill.has(slots)]
            keys = self._arena.keys[waited]
            for key, slot in zip(keys.tolist(), waited.tolist(), strict=True):
                self._spill.drop(key, slot)
        self._arena.keys[slots] = 0
        self.count -= len(slots)

    def chunks(self, cells: int) -> Iterator[Slots]:
        """The slots that hold keys, of so many of the directory's cells at a time.

        The table may change between two chunks; nothing that stays in it is missed, because
        entries move from where they waited to their rows, and from rows to later ones.
        """
        yield self._held_in(self._spill.rows)
        for rows in self._directory.chunks(cells):
            yield self._held_in(rows)

    def dismantle(self, cells: int) -> Iterator[Slots]:
        """`chunks`, giving each back when the next is asked for. The table is gone after it."""
        for rows in self._directory.chunks(cells):
            yield self._held_in(rows)
            self._arena.give_back(rows)
        yield self._held_in(self._spill.rows)
        self._spill.dismantle()
        self._directory.drop()

    def merge(self) -> Iterator[int]:
        """See `Directory.merge`."""
        return self._directory.merge()

    def _held_in(self, rows: Slots) -> Slots:
        at, place = np.nonzero(self._arena.rows[rows])
        slots: Slots = rows[at] * ROW_SLOTS + place
        return slots

    def _find_in(self, keys: Keys, rows: Slots, held: Keys) -> Slots:
        """The slots of keys in their rows, which hold the keys `held`, or where they wait."""
        hits = np.flatnonzero(held == keys[:, None])
        slots: Slots = np.full(len(keys), ABSENT, np.int64)
        if len(hits):
            found = hits >> _SLOT_BITS
            slots[found] = rows.take(found) * ROW_SLOTS + (hits & _SLOT_MASK)
        if self._spill.slots and len(hits) < len(keys):
            absent = np.flatnonzero(slots == ABSENT)
            for number in absent[self._spill.is_marked(rows[absent])].tolist():
                slots[number] = self._spill.slots.get(int(keys[number]), ABSENT)
        return slots

    def _insert(self, keys: Keys, slots: Slots, is_new: Flags) -> None:
        """Find or make a slot for each key. ArenaFull: some have none."""
        left: Slots = np.arange(len(keys))
        has_split = False
        may_spill = max(_SPILL_AT_LEAST, self._may_spill - len(self._spill))
        try:
            while len(left):
                left, full = self._place(keys, left, slots, is_new)
                must_split = len(full) > 0 and len(left) + len(full) > may_spill
                if must_split and self._split_for(keys[full]):
                    has_split, may_spill = True, _SPILL_AT_LEAST
                elif must_split or len(left) <= _SPILL_AT_LEAST:
                    self._spill_or_find(keys, (left, full), slots, is_new)
                    break
                left = np.concatenate((left, full))
        finally:
            self.count += int(np.count_nonzero(is_new & (slots != ABSENT)))
            if has_split:
                self._follow_splits(keys, slots)

    def _follow_splits(self, keys: Keys, slots: Slots) -> None:
        """Put right where the keys are: an entry keeps its place when it moves to another row."""
        homes = self._directory.rows_of(keys) * ROW_SLOTS + (slots & _SLOT_MASK)
        is_home = (slots != ABSENT) & ~self._spill.has(np.maximum(slots, 0))
        slots[is_home] = homes[is_home]

    def _place(self, keys: Keys, left: Slots, slots: Slots, is_new: Flags) -> tuple[Slots, Slots]:
        """Find the keys at `left`, or put them into free slots of their rows.

        Keys of one row may want the same slot. Returns those whose slot another of them got, and
        those whose rows are full.
        """
        arena = self._arena
        wanted = keys if len(left) == len(keys) else keys[left]
        rows = self._directory.rows_of(wanted)
        held = arena.rows.take(rows, 0)
        known = self._find_in(wanted, rows, held)
        places, fits = free_places(wanted, rows, held)
        absent = np.flatnonzero(known == ABSENT)
        if len(absent) < len(left):
            slots[left] = known
            is_new[left] = known == ABSENT
            left, wanted, places, fits = left[absent], wanted[absent], places[absent], fits[absent]
        full = lost = left[:0]
        if not fits.all():
            full = left[~fits]
            left, wanted, places = left[fits], wanted[fits], places[fits]
        # whoever's number is in the slot in the end has got it
        numbers = left.astype(np.uint64)
        arena.values[places] = numbers
        won = arena.values.take(places) == numbers
        if not won.all():
            lost = left[~won]
            left, wanted, places = left[won], wanted[won], places[won]
        arena.keys[places] = wanted
        slots[left] = places
        return lost, full

    def _spill_or_find(
        self, keys: Keys, left: tuple[Slots, Slots], slots: Slots, is_new: Flags
    ) -> None:
        """For keys that lost their place to others, perhaps to themselves, or whose rows are full:
        places where they wait for the next splitting."""
        lost, full = left
        found = self.find_many(keys[lost])
        is_known = found != ABSENT
        slots[lost] = found
        is_new[lost[is_known]] = False
        numbers = np.concatenate((lost[~is_known], full))
        wanted = keys[numbers]
        if len(set(wanted.tolist())) == len(wanted):
            slots[numbers] = self._spill.add_all(wanted)
            return
        for number, key in zip(numbers.tolist(), wanted.tolist(), strict=True):
            waiting = self._spill.slots.get(key, ABSENT)
            is_new[number] = waiting == ABSENT
            slots[number] = self._spill.add(key) if waiting == ABSENT else waiting

    def _split_for(self, keys: Keys) -> bool:
        """Split the full rows that these keys should be in. False: none can be."""
        rows = self._directory.rows_of(keys)
        rows = self._directory.splittable(once(rows))
        self._directory.split(rows)
        return len(rows) > 0

    @property
    def _may_spill(self) -> int:
        return max(_SPILL_AT_LEAST, min(self.count // _SPILL_SHARE, _SPILL_AT_MOST))

    def _split_when_due(self) -> bool:
        """Split the rows that overflowed, if enough wait for it. True: slots may have changed."""
        if len(self._spill) <= self._may_spill:
            return False
        keys = np.fromiter(self._spill.slots, np.uint64, len(self._spill))
        rows = self._directory.rows_of(keys)
        try:
            self._split_for(keys[self._arena.rows[rows].all(axis=1)])
        except ArenaFull:
            return False
        lifted = self._spill.lift()
        slots: Slots = np.full(len(keys), ABSENT, np.int64)
        is_new: Flags = np.ones(len(keys), np.bool_)
        left: Slots = np.arange(len(keys))
        full = left[:0]
        while len(left):
            left, crowded = self._place(lifted[0], left, slots, is_new)
            full = np.concatenate((full, crowded))
        slots[full] = self._spill.add_all(lifted[0][full])
        self._fill_lifted(lifted, slots, is_new)
        return True

    def _fill_lifted(self, lifted: Lifted, slots: Slots, is_new: Flags) -> None:
        """Fill their slots, the last ones. What was among the others too is not new there."""
        keys, values, depths = lifted
        count = len(slots) - len(keys)
        self._arena.values[slots[count:]] = values
        self._arena.depths[slots[count:]] = depths
        for number in np.flatnonzero(~is_new[count:]).tolist():
            is_new[:count][slots[:count] == slots[count + number]] = False

    def _put_back(self, lifted: Lifted) -> None:
        """Let them wait again; their slots are still there."""
        for key, value, depth in zip(*(column.tolist() for column in lifted), strict=True):
            slot = self.find(key)
            if slot == ABSENT:
                slot = self._spill.add(key)
                self.count += 1
            self._arena.value_cells[slot] = value
            self._arena.depth_cells[slot] = depth
