"""What a replica holds at one instant, copied a piece at a time while events go on.

Shelves are listed in the order of their keys. Whoever changes an entry that has not been listed
yet first notes what it was; so what is listed and what was noted are together the state at the
beginning, however long the copying takes.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np

from router.compiled import Cells
from router.index import sweeping
from router.index.arena import Arena
from router.index.dump import ALL_KEYS, HoldingsDump, Listing, joined, listed_from, shelf_dump
from router.index.holdings import Holdings, ShelfKey


class ShelfCopy:
    """Of one shelf, for as long as it takes."""

    def __init__(self, arena: Arena, group: ShelfKey, table: int) -> None:
        self.group, self.table = group, table
        self._arena = arena
        self._where = 0
        self._pieces: list[Listing] = []
        self._noted: list[Listing] = []

    @property
    def is_whole(self) -> bool:
        return self._where == ALL_KEYS

    def step(self) -> None:
        """Copy some thousand entries."""
        self._where, piece = listed_from(self._arena, self.table, self._where)
        self._pieces.append(piece)

    def note(self, handles: Cells) -> None:
        """What these handles stand for is about to change. O(handles)."""
        if self.is_whole:
            return
        room = Listing.empty(len(handles) // 2)
        cells, where = self._arena.cells, self._where
        count = sweeping.still(cells, self.table, where, handles, room.cells)
        if count:
            self._noted.append(room.only(slice(count)))

    def pieces(self) -> list[Listing]:
        """What lay there at the beginning. O(blocks)."""
        if not self._noted:
            return self._pieces
        noted = joined(self._noted)
        # of several changes to one entry the first one found what was there at the beginning
        keys, first = np.unique(noted.keys, return_index=True)
        before = noted.only(first)
        found = [_without(piece, keys) for piece in self._pieces]
        return [*found, before.only(before.marks != 0)]


class Copy:
    """Of one replica's holdings as they are now, whatever happens to them until it is whole.

    A `with` block: inside it the index notes what it changes. `is_void`: they were cleared, or the
    replica left, and what is copied of them is of no use.
    """

    def __init__(self, arena: Arena, holdings: Holdings, under_way: list[Copy]) -> None:
        self.is_void = False
        self._block_sizes = sorted(holdings.block_sizes)
        shelves = holdings.shelves.items()
        self._shelves = [ShelfCopy(arena, group, shelf.table) for group, shelf in shelves]
        self._tables = {shelf.table: shelf for shelf in self._shelves}
        self._under_way = under_way

    def __enter__(self) -> Self:
        self._under_way.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._under_way.remove(self)

    def note(self, table: int, handles: Cells) -> None:
        """These handles of a shelf are about to change."""
        if (shelf := self._tables.get(table)) is not None:
            shelf.note(handles)

    def void(self, table: int) -> None:
        """A shelf is going, and its memory may become another's."""
        self.is_void |= table in self._tables

    def step(self) -> bool:
        """Copy some more. False: there was nothing left to copy."""
        shelf = next((each for each in self._shelves if not each.is_whole), None)
        if shelf is None or self.is_void:
            return False
        shelf.step()
        return True

    def dump(self) -> HoldingsDump:
        """All of it. Looks at nothing but the copy, so another thread may call it. O(blocks)."""
        shelves = [shelf_dump(each.group, each.pieces()) for each in self._shelves]
        return HoldingsDump(self._block_sizes, shelves)


def _without(piece: Listing, keys: np.typing.NDArray[np.uint64]) -> Listing:
    """What isn't among these keys, which are sorted and not none."""
    nearest = np.minimum(np.searchsorted(keys, piece.keys), len(keys) - 1)
    return piece.only(keys[nearest] != piece.keys)
