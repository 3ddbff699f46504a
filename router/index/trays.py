"""Where news of blocks waits for a while: arrays are fast only for many blocks at a time.

What was stored last lies in trays, one per shelf, and is put away into the tables by the
thousand; a block is held if it lies in a tray or is in the tables. Removals of what is in the
tables are collected and applied before anybody asks. What is to be removed from a tray, or comes
again, is rare: then the tray is put away first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np

from router.blocks import BlockHash, EngineHash
from router.index.arena import Arena
from router.index.booking import Books
from router.index.holders import Holders
from router.index.holdings import Holdings, Shelf, key_of, keys_of
from router.index.table import ABSENT
from router.index.tray import Part, Removals, Tray

TRAY_BYTES: Final = 200
"""What a block in a tray takes, about."""

TRAY_BLOCKS: Final = 2048
"""Put away at a time: about 1 ms."""

_TRAYS_SHARE: Final = 32
_GONE_AT_MOST: Final = 1024


@dataclass(slots=True)
class Trays:
    """All shelves' trays, before `books`."""

    arena: Arena
    holders: Holders
    books: Books
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
        part: Part,
        parent: EngineHash | None,
    ) -> bool:
        """One more copy of blocks that follow one another, and `parent`.

        False: some of them lie here already, or come twice; put the tray away, and `book` them.
        """
        if not part.blocks:
            return True
        if not shelf.tray.claim(part.handles):
            return False
        if shelf.tray.add(part, parent):
            self.holders.lying.add(part)
        self.blocks += len(part.blocks)
        return True

    def book(self, holdings: Holdings, shelf: Shelf, part: Part) -> None:
        """The same, past the tray. ArenaFull: what found no room is forgotten, and counted."""
        self.settle_shelf(holdings, shelf)
        depths = np.arange(part.depth, part.depth + len(part.blocks))
        self.books.hold(holdings, shelf, keys_of(part.handles), _as_keys(part.blocks), depths)

    def remove(self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash]) -> None:
        """One copy less of each; none may lie in the tray. Unknown ones are noted where they may
        be parked, and counted."""
        shelf.gone.add(handles)
        self._unsettled[id(shelf)] = holdings, shelf
        if shelf.parked or len(shelf.gone) >= _GONE_AT_MOST:
            self.settle_shelf(holdings, shelf)

    def find(self, shelf: Shelf, handle: EngineHash) -> tuple[BlockHash, int] | None:
        """A held block and its depth."""
        lying = shelf.tray.find(handle)
        if lying is not None:
            return lying
        slot = self._slot(shelf, handle)
        if slot == ABSENT:
            return None
        return self.arena.value_cells[slot], self.arena.depth_cells[slot]

    def holds(self, shelf: Shelf, handle: EngineHash) -> bool:
        """Is a block held? Cheaper than `find`."""
        return handle in shelf.tray or self._slot(shelf, handle) != ABSENT

    def missing(self, shelf: Shelf, part: Part) -> Iterator[Part]:
        """What of a part is not held, as parts of its own."""
        absent = [n for n, handle in enumerate(part.handles) if not self.holds(shelf, handle)]
        for _, run in groupby(enumerate(absent), lambda pair: pair[1] - pair[0]):
            places = [place for _, place in run]
            first, end = places[0], places[-1] + 1
            blocks, handles = part.blocks[first:end], part.handles[first:end]
            yield Part(part.bit, part.depth + first, handles, blocks)

    def settle(self) -> None:
        """Apply all removals that wait."""
        while self._unsettled:
            self.settle_shelf(*next(iter(self._unsettled.values())))

    def settle_shelf(self, holdings: Holdings, shelf: Shelf) -> None:
        """Apply a shelf's removals that wait."""
        self._unsettled.pop(id(shelf), None)
        if shelf.gone:
            gone, shelf.gone = shelf.gone, Removals()
            self.books.remove(holdings, shelf, gone.handles())

    def is_due(self, shelf: Shelf) -> bool:
        """Is there enough in a tray to be put away?"""
        return len(shelf.tray) >= TRAY_BLOCKS

    def put_away(self, holdings: Holdings, shelf: Shelf) -> None:
        """Empty a tray into the tables. ArenaFull: what found no room is forgotten, and counted."""
        self.settle_shelf(holdings, shelf)
        tray = self._take(shelf)
        if tray.parts:
            keys, blocks = keys_of(tray.handles()), _as_keys(tray.blocks())
            self.books.hold(holdings, shelf, keys, blocks, tray.depths())

    def drop(self, shelf: Shelf) -> None:
        """Forget what lies in a tray and what waits to be removed."""
        self._unsettled.pop(id(shelf), None)
        shelf.gone = Removals()
        self._take(shelf)

    def _slot(self, shelf: Shelf, handle: EngineHash) -> int:
        """Where the table has a handle. Only applying a removal shows whether a copy is left."""
        if shelf.gone and handle in shelf.gone:
            self.settle_shelf(*self._unsettled[id(shelf)])
        return shelf.table.find(key_of(handle))

    def _take(self, shelf: Shelf) -> Tray:
        tray, shelf.tray = shelf.tray, Tray()
        self.holders.lying.take_out(tray.parts)
        self.blocks -= sum(len(part.blocks) for part in tray.parts)
        return tray


def _as_keys(blocks: Sequence[BlockHash]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(array("Q", blocks), np.uint64)
