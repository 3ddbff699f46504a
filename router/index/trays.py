"""Where news of blocks waits for a while: arrays are fast only for many blocks at a time.

What was stored last lies in dicts, one tray per shelf, and is put away into the tables by the
thousand; a block is held if it lies in a tray or is in the tables. Removals of what is in the
tables are collected and applied before anybody asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

import numpy as np

from router.blocks import BlockHash, EngineHash
from router.index.arena import Arena
from router.index.booking import Books
from router.index.holders import Holders
from router.index.holdings import Holdings, Shelf, key_of, keys_of
from router.index.stats import IndexStats
from router.index.table import ABSENT
from router.index.tray import Removals, Tray

TRAY_BYTES: Final = 300
"""What a block in a tray takes, about."""

_TRAY_AT_MOST: Final = 4096
_TRAYS_SHARE: Final = 32
_GONE_AT_MOST: Final = 2048


@dataclass(slots=True)
class Trays:
    """All shelves' trays, before `books`."""

    arena: Arena
    holders: Holders
    books: Books
    stats: IndexStats
    blocks: int = 0
    _unsettled: dict[int, tuple[Holdings, Shelf]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return self.blocks * TRAY_BYTES

    @property
    def is_overfull(self) -> bool:
        """Do the trays take more of the bound than they should?"""
        return self.bytes * _TRAYS_SHARE > self.arena.max_bytes

    def hold(
        self,
        holdings: Holdings,
        shelf: Shelf,
        handles: Sequence[EngineHash],
        blocks: Sequence[BlockHash],
        depth: int,
    ) -> None:
        """One more copy of blocks that follow one another, the first at `depth`."""
        before = len(shelf.tray)
        if shelf.tray.add_new(handles, blocks, depth):
            self._mark(holdings, blocks)
        else:
            for number, (handle, block) in enumerate(zip(handles, blocks, strict=True), depth):
                self._hold_one(holdings, shelf, handle, block, number)
        self.blocks += len(shelf.tray) - before

    def remove(self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash]) -> None:
        """One copy less of each. Unknown ones are noted where they may be parked, and counted."""
        if shelf.tray.holds_any(handles):
            handles = self._remove_lying(holdings, shelf, handles)
        if handles:
            shelf.gone.add(handles)
            self._unsettled[id(shelf)] = holdings, shelf
            if shelf.parked or len(shelf.gone) >= _GONE_AT_MOST:
                self.settle_shelf(holdings, shelf)

    def find(self, shelf: Shelf, handle: EngineHash) -> tuple[BlockHash, int] | None:
        """A held block and its depth."""
        lying = shelf.tray.find(handle)
        if lying is not None:
            return lying
        slot = shelf.table.find(key_of(handle))
        if slot == ABSENT or (shelf.gone and handle in shelf.gone):
            return None
        return self.arena.value_cells[slot], self.arena.depth_cells[slot]

    def settle(self) -> None:
        """Apply all removals that wait."""
        while self._unsettled:
            self.settle_shelf(*next(iter(self._unsettled.values())))

    def settle_shelf(self, holdings: Holdings, shelf: Shelf) -> None:
        """Apply a shelf's removals that wait."""
        self._unsettled.pop(id(shelf), None)
        if shelf.gone:
            gone, shelf.gone = shelf.gone, Removals()
            for handles in gone.rounds():
                self.books.remove(holdings, shelf, handles)

    def is_due(self, shelf: Shelf) -> bool:
        """Is there enough in a tray to be put away?"""
        return shelf.tray.size >= _TRAY_AT_MOST

    def put_away(self, holdings: Holdings, shelf: Shelf) -> None:
        """Empty a tray into the tables. ArenaFull: what found no room is forgotten, and counted."""
        self.settle_shelf(holdings, shelf)
        if not shelf.tray:
            shelf.tray = Tray()
            return
        tray, is_plain = shelf.tray, not holdings.tray_others
        self.drop(holdings, shelf)
        handles, blocks, depths = tray.handles(), tray.blocks(), tray.depths()
        if is_plain:
            numbers = np.frombuffer(array("Q", blocks), np.uint64)
            self.books.hold(holdings, shelf, keys_of(handles), numbers, depths)
        else:
            for handle, block, depth in zip(handles, blocks, depths.tolist(), strict=True):
                self.books.hold_one(holdings, shelf, key_of(handle), block, depth)
        for handle, count in tray.copies.items():
            for _ in range(count):
                self.books.add_copy(shelf, key_of(handle))

    def drop(self, holdings: Holdings, shelf: Shelf) -> None:
        """Forget what lies in a tray and what waits to be removed."""
        self._unsettled.pop(id(shelf), None)
        blocks = shelf.tray.blocks()
        if holdings.tray_others:
            for block in blocks:
                self._unmark(holdings, block)
        else:
            self.holders.unmark_many(blocks, holdings.bit)
        self.blocks -= len(blocks)
        shelf.tray, shelf.gone = Tray(), Removals()

    def _mark(self, holdings: Holdings, blocks: Sequence[BlockHash]) -> None:
        masks, bit = self.holders.tray, holdings.bit
        if masks.keys().isdisjoint(blocks):
            masks.update(zip(blocks, repeat(bit)))
            return
        for block in blocks:
            mask = masks.get(block, 0)
            if mask & bit:
                holdings.tray_others[block] = holdings.tray_others.get(block, 0) + 1
            else:
                masks[block] = mask | bit

    def _unmark(self, holdings: Holdings, block: BlockHash) -> None:
        others = holdings.tray_others
        if block not in others:
            self.holders.unmark_many((block,), holdings.bit)
        elif others[block] > 1:
            others[block] -= 1
        else:
            del others[block]

    def _hold_one(
        self, holdings: Holdings, shelf: Shelf, handle: EngineHash, block: BlockHash, depth: int
    ) -> None:
        tray = shelf.tray
        known = tray.block(handle)
        if known == block:
            tray.copies[handle] = tray.copies.get(handle, 0) + 1
            return
        if known is not None:
            self.stats.conflicts += 1
            self._unmark(holdings, tray.pop(handle))
        tray.add_new((handle,), (block,), depth)
        self._mark(holdings, (block,))

    def _remove_lying(
        self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash]
    ) -> list[EngineHash]:
        """Take copies out of the tray; returns the handles that don't lie there."""
        others, copies = [], shelf.tray.copies
        for handle in handles:
            if handle not in shelf.tray:
                others.append(handle)
                continue
            self.stats.removed += 1
            extra = copies.get(handle, 0)
            if extra > 1:
                copies[handle] = extra - 1
            elif extra == 1:
                del copies[handle]
            else:
                self.blocks -= 1
                self._unmark(holdings, shelf.tray.pop(handle))
        return others
