"""A replica's blocks as plain bytes, for a file or for another router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.compiled import Cells
from router.index import kernels, sweeping
from router.index.arena import Arena
from router.index.booking import OFFSET, SPREAD
from router.index.holdings import Shelf, ShelfKey
from router.index.layout import COPIES_BITS, LEVELS, MAX_COPIES

ALL_KEYS: Final = int(sweeping.ALL_KEYS)
_UNSPREAD: Final = np.uint64(pow(int(SPREAD), -1, 2**64))
_LOADED_AT_ONCE: Final = 4096
_LISTED_AT_ONCE: Final = 8192


class ShelfDump(msgspec.Struct, frozen=True):
    """Three arrays of the same length: spread engine hashes (uint64), blocks (uint64), depths
    (uint16), in native order; and the number of copies beyond the first, by engine hash."""

    group: ShelfKey
    keys: bytes
    blocks: bytes
    depths: bytes
    copies: dict[int, int]


class HoldingsDump(msgspec.Struct, frozen=True):
    """All that one replica holds."""

    block_sizes: list[int]
    shelves: list[ShelfDump]

    @property
    def blocks(self) -> int:
        """(group, engine hash) pairs in it."""
        return sum(len(shelf.keys) // 8 for shelf in self.shelves)


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies on a shelf, in three arrays of the same length."""

    keys: NDArray[np.uint64]
    blocks: NDArray[np.uint64]
    marks: NDArray[np.uint32]

    @classmethod
    def empty(cls, count: int) -> Listing:
        """Room for so many."""
        numbers = np.empty(count, np.uint64), np.empty(count, np.uint64)
        return cls(*numbers, np.empty(count, np.uint32))

    @property
    def cells(self) -> tuple[Cells, Cells, Cells]:
        """As kernels want them."""
        return self.keys.view(np.uint32), self.blocks.view(np.uint32), self.marks

    def only(self, which: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Listing:
        """Some of them."""
        return Listing(self.keys[which], self.blocks[which], self.marks[which])

    @property
    def depths(self) -> NDArray[np.uint16]:
        return (self.marks >> np.uint32(COPIES_BITS)).astype(np.uint16)

    @property
    def more_copies(self) -> dict[int, int]:
        """Copies beyond the first, by key."""
        copies = self.marks & np.uint32(MAX_COPIES)
        several = copies > 1
        return dict(zip(self.keys[several].tolist(), (copies[several] - 1).tolist(), strict=True))


def listed(arena: Arena, shelf: Shelf, most: int | None = None) -> Listing:
    """All of a shelf; or at most so many entries of it, as good as drawn at random. O(blocks)."""
    pieces, where, count = [Listing.empty(0)], 0, 0
    while where < ALL_KEYS and (most is None or count < most):
        where, piece = listed_from(arena, shelf.table, where)
        count += len(piece.keys)
        pieces.append(piece)
    return joined(pieces).only(slice(most))


def listed_from(arena: Arena, table: int, where: int) -> tuple[int, Listing]:
    """Some thousand entries of a shelf from `where` on, and where to go on. At `ALL_KEYS` it has
    no more."""
    room = Listing.empty(_LISTED_AT_ONCE)
    where, count = sweeping.listed(arena.cells, table, where, room.cells)
    return where, room.only(slice(count))


def joined(pieces: Sequence[Listing]) -> Listing:
    """All in one, in their order."""
    return Listing(
        np.concatenate([piece.keys for piece in pieces]),
        np.concatenate([piece.blocks for piece in pieces]),
        np.concatenate([piece.marks for piece in pieces]),
    )


def shelf_dump(group: ShelfKey, pieces: Sequence[Listing]) -> ShelfDump:
    """As it is kept and sent. O(blocks), but no call into numpy is about more than one piece."""
    copies: dict[int, int] = {}
    for piece in pieces:
        copies.update(piece.more_copies)
    return ShelfDump(
        group,
        b"".join([piece.keys.tobytes() for piece in pieces]),
        b"".join([piece.blocks.tobytes() for piece in pieces]),
        b"".join([piece.depths.tobytes() for piece in pieces]),
        copies,
    )


def load_shelf(arena: Arena, shelf: Shelf, dump: ShelfDump) -> int:
    """Book what was dumped onto an empty shelf. Returns how many find no room at the bound."""
    keys, blocks = np.frombuffer(dump.keys, np.uint64), np.frombuffer(dump.blocks, np.uint64)
    depths = np.frombuffer(dump.depths, np.uint16)
    handles = (keys - OFFSET) * _UNSPREAD
    order = np.argsort(depths, kind="stable")  # parents first, in case not all fit
    borders = np.flatnonzero(np.diff(depths[order])) + 1
    refused = 0
    for same in np.split(order, borders) if len(order) else []:
        for start in range(0, len(same), _LOADED_AT_ONCE):
            part = same[start : start + _LOADED_AT_ONCE]
            booked = handles[part].view(np.uint32), blocks[part].view(np.uint32)
            depth = int(depths[part[0]])
            done = arena.write(kernels.store, shelf.table, depth, *booked, int(LEVELS))[0]
            refused += len(part) - done
    _add_copies(arena, shelf, dump.copies)
    return refused


def _add_copies(arena: Arena, shelf: Shelf, copies: dict[int, int]) -> None:
    for key, count in copies.items():
        handle = (np.array([key], np.uint64) - OFFSET) * _UNSPREAD
        depth, block = kernels.look_up(arena.cells, shelf.table, handle.view(np.uint32))
        if depth >= 0:
            again = np.full(min(count, int(MAX_COPIES)), handle[0], np.uint64)
            blocks = np.full(len(again), block, np.uint64)
            booked = again.view(np.uint32), blocks.view(np.uint32)
            arena.write(kernels.store, shelf.table, depth, *booked, int(LEVELS))
