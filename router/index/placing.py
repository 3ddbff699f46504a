"""What an event says of blocks, put on a replica's shelves and taken off them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from router.blocks import BlockStored, EngineHash
from router.blocks.hashing import HASH_CODE, TYPE_CODE, hash_each
from router.compiled import Cells
from router.index import growing, kernels
from router.index.arena import Arena, halves
from router.index.copying import Copy
from router.index.holdings import Holdings, Shelf, handles_of
from router.index.layout import COPIES, REPORTED
from router.index.origin import chain, root_seed
from router.index.parking import Parked
from router.index.stats import IndexStats

_COPIES, _REPORTED = int(COPIES), int(REPORTED)
_NO_HASH: Final = array(HASH_CODE, [0])


@dataclass(frozen=True, slots=True)
class Placer:
    """`copies`: under way, to be told of what changes."""

    arena: Arena
    stats: IndexStats
    copies: Sequence[Copy]
    clock: Callable[[], float]

    def holds(self, shelf: Shelf, handle: EngineHash) -> bool:
        """Whether the shelf has a block under that handle."""
        return kernels.look_up(self.arena.cells, shelf.table, handles_of((handle,)))[0] >= 0

    def place(self, holdings: Holdings, shelf: Shelf, event: BlockStored) -> None:
        """The event's blocks, and those that waited for them."""
        if not shelf.parked:
            self._place(holdings, shelf, event)
            return
        self.stats.orphaned += shelf.parked.expire(self.clock())
        ready = [Parked(event, 0.0)]
        while ready:
            parked = ready.pop()
            self._place(holdings, shelf, parked.event)
            if shelf.parked:
                for handle in parked.event.block_hashes:
                    if self.holds(shelf, handle):
                        ready.extend(reversed(shelf.parked.take_children(handle)))
            if parked.removed:
                self.remove(shelf, parked.removed)

    def grow(self, shelf: Shelf, events: Sequence[BlockStored], start: int) -> int:
        """Those of `events` from `start` on, up to one whose parent is not known: returns how many.
        See `PrefixIndex.store_all`; nothing is parked on the shelf."""
        cells, rest = self.arena.cells, events[start:]
        parents = handles_of([event.parent_block_hash or 0 for event in rest])
        hashes, depths = _NO_HASH * len(rest), np.empty(len(rest), np.int64)
        count = growing.look_up_each(cells, shelf.table, parents, halves(hashes), depths)
        if count:
            tokens = array(TYPE_CODE)
            for event in rest[:count]:
                tokens.extend(event.token_ids)
            hashes = hashes[:count]
            hash_each(tokens, rest[0].block_size, hashes)
            handles = handles_of([event.block_hashes[0] for event in rest[:count]])
            self._tell(shelf, handles)
            done, conflicts = self.arena.write(
                growing.store_each, shelf.table, handles, halves(hashes), depths[:count]
            )
            self.stats.stored += done
            self.stats.conflicts += conflicts
            self.stats.refused += count - done
        return count

    def take(
        self, shelf: Shelf, depth: int, handles: Cells, blocks: Cells, mode: int = _COPIES
    ) -> None:
        """Blocks that follow one another, the first of them at `depth`."""
        self._tell(shelf, handles)
        done, again, conflicts = self.arena.write(
            kernels.store, shelf.table, depth, handles, blocks, mode
        )
        stats = self.stats
        stats.stored += done - again
        stats.reported_again += again
        stats.conflicts += conflicts
        stats.refused += len(blocks) // 2 - done

    def remove(self, shelf: Shelf, handles: Sequence[EngineHash]) -> None:
        """One copy of each."""
        keys = handles_of(tuple(handles))  # they are written over
        self._tell(shelf, keys)
        unknown = self.arena.write(kernels.remove_copies, shelf.table, keys)
        self.stats.removed += len(handles) - unknown
        if unknown:
            for number in keys[:unknown].tolist():
                if not (shelf.parked and shelf.parked.note_removed(handles[number])):
                    self.stats.removed_unknown += 1

    def _tell(self, shelf: Shelf, handles: Cells) -> None:
        for copy in self.copies:
            copy.note(shelf.table, handles)

    def _place(self, holdings: Holdings, shelf: Shelf, event: BlockStored) -> None:
        parent, depth, mode = event.parent_block_hash, 0, _COPIES
        if parent is None:
            seed = root_seed(event)
            mode = _REPORTED if holdings.reports_reused else _COPIES
        else:
            cells, handle = self.arena.cells, handles_of((parent,))
            above, block = kernels.look_up(cells, shelf.table, handle)
            if above < 0:
                self.stats.orphaned += shelf.parked.park(event, self.clock())
                return
            seed, depth = int(block), above + 1
        blocks = chain(event, seed)
        if blocks is None:
            self.stats.unreadable += len(event.block_hashes)
        else:
            self.take(shelf, depth, handles_of(event.block_hashes), halves(blocks), mode)
