"""A replica's blocks as plain bytes, for a file or for another router."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
import numpy as np

from router.index.arena import Arena, ArenaFull
from router.index.booking import Books
from router.index.holdings import Holdings, Shelf, ShelfKey

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


def dump_holdings(arena: Arena, holdings: Holdings) -> HoldingsDump:
    """Whatever lies in trays must have been put away before."""
    shelves = [_dump_shelf(arena, group, shelf) for group, shelf in holdings.shelves.items()]
    return HoldingsDump(sorted(holdings.block_sizes), shelves)


def load_shelf(books: Books, holdings: Holdings, shelf: Shelf, dump: ShelfDump) -> None:
    """Book what was dumped onto an empty shelf; at the bound, as much as fits."""
    keys, blocks = np.frombuffer(dump.keys, np.uint64), np.frombuffer(dump.blocks, np.uint64)
    depths = np.frombuffer(dump.depths, np.uint16).astype(np.int64)
    order = np.argsort(depths, kind="stable")  # parents first, in case not all fit
    with suppress(ArenaFull):
        for start in range(0, len(order), _LOADED_AT_ONCE):
            part = order[start : start + _LOADED_AT_ONCE]
            _, first = np.unique(blocks[part], return_index=True)
            once = part[np.sort(first)]
            books.hold(holdings, shelf, keys[once], blocks[once], depths[once])
            for number in np.setdiff1d(part, once).tolist():
                where = int(keys[number]), int(blocks[number]), int(depths[number])
                books.hold_one(holdings, shelf, *where)
    for key, count in dump.copies.items():
        for _ in range(count):
            books.add_copy(shelf, key)


def _dump_shelf(arena: Arena, group: ShelfKey, shelf: Shelf) -> ShelfDump:
    slots = np.concatenate(list(shelf.table.chunks(1 << 16)))
    return ShelfDump(
        group,
        arena.keys[slots].tobytes(),
        arena.values[slots].tobytes(),
        arena.depths[slots].tobytes(),
        dict(shelf.extra_copies),
    )
