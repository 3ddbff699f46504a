"""A replica's blocks as plain bytes, for a file or for another router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.index import kernels, sweeping
from router.index.arena import Arena
from router.index.booking import OFFSET, SPREAD
from router.index.holdings import Holdings, Shelf, ShelfKey
from router.index.layout import COPIES_BITS, COUNT, LEVELS, MAX_COPIES

_UNSPREAD: Final = np.uint64(pow(int(SPREAD), -1, 2**64))
_LOADED_AT_ONCE: Final = 4096


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
    count = int(arena.cells[shelf.table + COUNT])
    count = count if most is None else min(count, most)
    keys, blocks = np.empty(count, np.uint64), np.empty(count, np.uint64)
    marks = np.empty(count, np.uint32)
    sweeping.listed(arena.cells, shelf.table, keys.view(np.uint32), blocks.view(np.uint32), marks)
    return Listing(keys, blocks, marks)


def dump_holdings(arena: Arena, holdings: Holdings) -> HoldingsDump:
    shelves = [_dump_shelf(arena, group, shelf) for group, shelf in holdings.shelves.items()]
    return HoldingsDump(sorted(holdings.block_sizes), shelves)


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


def _dump_shelf(arena: Arena, group: ShelfKey, shelf: Shelf) -> ShelfDump:
    held = listed(arena, shelf)
    arrays = (held.keys.tobytes(), held.blocks.tobytes(), held.depths.tobytes())
    return ShelfDump(group, *arrays, held.more_copies)
