"""Books blocks on and off a replica's shelves and in the table of holders, in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from router.blocks import BlockHash, EngineHash
from router.index.arena import Arena, ArenaFull, Flags, Keys, Slots
from router.index.holders import Holders
from router.index.holdings import MAX_DEPTH, Holdings, Shelf, key_of, keys_of
from router.index.stats import IndexStats
from router.index.table import ABSENT

_MANY: Final = 8
"""From so many blocks on, arrays are faster than one block at a time."""


@dataclass(slots=True)
class Books:
    """Each block is booked with its handle on one shelf, and its holder's bit in `holders`."""

    arena: Arena
    holders: Holders
    stats: IndexStats

    def hold(
        self, holdings: Holdings, shelf: Shelf, keys: Keys, blocks: Keys, depths: Slots
    ) -> None:
        """One more copy of each.

        What lies deeper than the replica's cap is refused. ArenaFull: so is the rest, and counted.
        """
        allowed = depths <= holdings.depth_cap
        if not allowed.all():
            self.stats.refused += int((~allowed).sum())
            keys, blocks, depths = keys[allowed], blocks[allowed], depths[allowed]
        if len(keys) < _MANY:
            self._hold_each(holdings, shelf, (keys, blocks, depths))
            return
        try:
            slots, is_new = shelf.table.upsert_many(keys)
            if is_new.all():
                self._book(holdings, shelf, slots, (blocks, depths))
                return
            self._book(holdings, shelf, slots[is_new], (blocks[is_new], depths[is_new]))
        except ArenaFull:
            self.stats.refused += len(keys)
            raise
        known = ~is_new
        self._hold_each(holdings, shelf, (keys[known], blocks[known], depths[known]))

    def hold_one(
        self, holdings: Holdings, shelf: Shelf, key: int, block: BlockHash, depth: int
    ) -> None:
        """One more copy of a block. ArenaFull."""
        arena = self.arena
        slot = shelf.table.find(key)
        if slot != ABSENT:
            known = arena.value_cells[slot]
            if known == block:
                shelf.add_copy(key)
                return
            self.stats.conflicts += 1
            shelf.drop_extra_copies(key)
            self._release(holdings, shelf, slot)
        slot = shelf.table.insert(key)
        arena.value_cells[slot] = block
        arena.depth_cells[slot] = min(depth, MAX_DEPTH)
        try:
            was_held = self.holders.add(block, holdings.bit)
        except ArenaFull:
            shelf.table.delete(slot)
            raise
        if was_held:
            holdings.other_handles[block] = holdings.other_handles.get(block, 0) + 1

    def add_copy(self, shelf: Shelf, key: int) -> None:
        """One more copy of a block, if it is held."""
        if shelf.table.find(key) != ABSENT:
            shelf.add_copy(key)

    def remove(self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash]) -> None:
        """One copy less of each. Unknown ones are noted where they may be parked, and counted."""
        if len(handles) < _MANY:
            for handle in handles:
                self._remove_one(holdings, shelf, handle)
            return
        keys = keys_of(handles)
        ordered = np.sort(keys)
        if not (ordered[1:] == ordered[:-1]).any():
            self._remove_once(holdings, shelf, handles, keys)
            return
        left = np.arange(len(keys))
        while len(left):
            first = np.unique(keys[left], return_index=True)[1]
            once = left[first]
            named = [handles[number] for number in once.tolist()]
            self._remove_once(holdings, shelf, named, keys[once])
            left = np.delete(left, first)

    def drop_slots(self, holdings: Holdings, shelf: Shelf, slots: Slots) -> None:
        """Take blocks off a shelf whatever the number of their copies."""
        if not len(slots):
            return
        blocks = self.arena.values[slots]
        if shelf.extra_copies:
            for key in self.arena.keys[slots].tolist():
                shelf.drop_extra_copies(key)
        shelf.table.delete_many(slots)
        if holdings.other_handles:
            for block in blocks.tolist():
                self._let_go(holdings, block)
        else:
            self.holders.drop_many(blocks, holdings.bit)

    def _book(
        self, holdings: Holdings, shelf: Shelf, slots: Slots, contents: tuple[Keys, Slots]
    ) -> None:
        blocks, depths = contents
        if not len(slots):
            return
        try:
            was_held: Flags = self.holders.add_many(blocks, holdings.bit)
        except ArenaFull:
            shelf.table.delete_many(slots)
            raise
        self.arena.values[slots] = blocks
        self.arena.depths[slots] = np.minimum(depths, MAX_DEPTH)
        if not was_held.any():
            return
        for block in blocks[was_held].tolist():
            holdings.other_handles[block] = holdings.other_handles.get(block, 0) + 1

    def _hold_each(self, holdings: Holdings, shelf: Shelf, what: tuple[Keys, Keys, Slots]) -> None:
        keys, blocks, depths = (column.tolist() for column in what)
        for number, (key, block, depth) in enumerate(zip(keys, blocks, depths, strict=True)):
            try:
                self.hold_one(holdings, shelf, key, block, depth)
            except ArenaFull:
                self.stats.refused += len(keys) - number
                raise

    def _remove_once(
        self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash], keys: Keys
    ) -> None:
        """One copy less of each; none comes twice."""
        slots = shelf.table.find_many(keys)
        held = slots != ABSENT
        if not held.all():
            for number in np.flatnonzero(~held).tolist():
                self._miss(shelf, handles[number])
            keys, slots = keys[held], slots[held]
        self.stats.removed += len(slots)
        if shelf.extra_copies:
            last = np.array([not shelf.drop_extra_copy(key) for key in keys.tolist()], np.bool_)
            slots = slots[last]
        self.drop_slots(holdings, shelf, slots)

    def _remove_one(self, holdings: Holdings, shelf: Shelf, handle: EngineHash) -> None:
        key = key_of(handle)
        slot = shelf.table.find(key)
        if slot == ABSENT:
            self._miss(shelf, handle)
            return
        self.stats.removed += 1
        if not (shelf.extra_copies and shelf.drop_extra_copy(key)):
            self._release(holdings, shelf, slot)

    def _miss(self, shelf: Shelf, handle: EngineHash) -> None:
        if not (shelf.parked and shelf.parked.note_removed(handle)):
            self.stats.removed_unknown += 1

    def _release(self, holdings: Holdings, shelf: Shelf, slot: int) -> None:
        block = self.arena.value_cells[slot]
        shelf.table.delete(slot)
        self._let_go(holdings, block)

    def _let_go(self, holdings: Holdings, block: BlockHash) -> None:
        others = holdings.other_handles
        if block in others:
            others[block] -= 1
            if not others[block]:
                del others[block]
            return
        self.holders.drop(block, holdings.bit)
