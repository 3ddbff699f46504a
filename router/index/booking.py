"""Books blocks on and off a replica's shelves and in the table of holders, in step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from router.blocks import BlockHash, EngineHash
from router.index.arena import Arena, ArenaFull, Slots
from router.index.holders import Holders
from router.index.holdings import MAX_DEPTH, Holdings, Shelf, key_of, keys_of
from router.index.stats import IndexStats
from router.index.table import ABSENT

_MANY: Final = 16
"""From so many blocks on, arrays are faster than one block at a time."""


@dataclass(slots=True)
class Books:
    """Each block is booked with its handle on one shelf, and its holder's bit in `holders`."""

    arena: Arena
    holders: Holders
    stats: IndexStats
    pairs: int = 0

    def hold(
        self,
        holdings: Holdings,
        shelf: Shelf,
        handles: Sequence[EngineHash],
        blocks: Sequence[BlockHash],
        depth: int,
    ) -> None:
        """One more copy of blocks that follow one another, the first at `depth`. ArenaFull."""
        if len(blocks) >= _MANY and self._hold_many(holdings, shelf, handles, blocks, depth):
            return
        for number, (handle, block) in enumerate(zip(handles, blocks, strict=True), depth):
            self._hold_one(holdings, shelf, key_of(handle), block, number)

    def remove(self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash]) -> None:
        """One copy less of each. Unknown ones are noted where they may be parked, and counted."""
        if len(handles) >= _MANY and self._remove_many(holdings, shelf, handles):
            return
        for handle in handles:
            self._remove_one(holdings, shelf, handle)

    def drop_slots(self, holdings: Holdings, shelf: Shelf, slots: Slots) -> None:
        """Take blocks off a shelf whatever the number of their copies."""
        blocks = self.arena.values[slots]
        if shelf.extra_copies:
            for key in self.arena.keys[slots].tolist():
                shelf.drop_extra_copies(key)
        shelf.table.delete_many(slots)
        self.pairs -= len(slots)
        if holdings.other_handles:
            for block in blocks.tolist():
                self._let_go(holdings, block)
        else:
            self.holders.drop_many(blocks, holdings.bit)

    def _hold_many(
        self,
        holdings: Holdings,
        shelf: Shelf,
        handles: Sequence[EngineHash],
        blocks: Sequence[BlockHash],
        depth: int,
    ) -> bool:
        """False: nothing was done, because some handles are not new."""
        count = len(blocks)
        if len(set(handles)) != count:
            return False
        slots, is_new = shelf.table.upsert_many(keys_of(handles))
        if not is_new.all():
            shelf.table.delete_many(slots[is_new])
            return False
        keys = np.frombuffer(array("Q", blocks), np.uint64)
        try:
            was_held = self.holders.add_many(keys, holdings.bit)
        except ArenaFull:
            shelf.table.delete_many(slots)
            raise
        self.arena.values[slots] = keys
        self.arena.depths[slots] = np.minimum(np.arange(depth, depth + count), MAX_DEPTH)
        self.pairs += count
        for block in keys[was_held].tolist():
            holdings.other_handles[block] = holdings.other_handles.get(block, 0) + 1
        return True

    def _hold_one(
        self, holdings: Holdings, shelf: Shelf, key: int, block: BlockHash, depth: int
    ) -> None:
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
        self.pairs += 1
        if was_held:
            holdings.other_handles[block] = holdings.other_handles.get(block, 0) + 1

    def _remove_many(self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash]) -> bool:
        """False: nothing was done, because some have copies, or are not there."""
        if shelf.extra_copies or holdings.other_handles or len(set(handles)) != len(handles):
            return False
        slots = shelf.table.find_many(keys_of(handles))
        if (slots == ABSENT).any():
            return False
        self.stats.removed += len(slots)
        self.drop_slots(holdings, shelf, slots)
        return True

    def _remove_one(self, holdings: Holdings, shelf: Shelf, handle: EngineHash) -> None:
        key = key_of(handle)
        slot = shelf.table.find(key)
        if slot == ABSENT:
            if not (shelf.parked and shelf.parked.note_removed(handle)):
                self.stats.removed_unknown += 1
            return
        self.stats.removed += 1
        if not (shelf.extra_copies and shelf.drop_extra_copy(key)):
            self._release(holdings, shelf, slot)

    def _release(self, holdings: Holdings, shelf: Shelf, slot: int) -> None:
        block = self.arena.value_cells[slot]
        shelf.table.delete(slot)
        self.pairs -= 1
        self._let_go(holdings, block)

    def _let_go(self, holdings: Holdings, block: BlockHash) -> None:
        others = holdings.other_handles
        if block in others:
            others[block] -= 1
            if not others[block]:
                del others[block]
            return
        self.holders.drop(block, holdings.bit)


def block_at(arena: Arena, shelf: Shelf, handle: EngineHash) -> tuple[BlockHash, int] | None:
    """A held block and its depth, by its handle."""
    slot = shelf.table.find(key_of(handle))
    if slot == ABSENT:
        return None
    return arena.value_cells[slot], arena.depth_cells[slot]
