"""What happens when the index reaches its bound in bytes: the longest chains lose their ends.

Leaves must go before their parents, because a block without its parent matches nothing. A block's
depth in its chain settles that without a tree: whatever is deeper than some depth goes, children
with their parents. The replica that holds most gets such a cap, at once for matching; the memory
is given back in slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from router.index.arena import ROW_BYTES
from router.index.booking import Books
from router.index.holdings import UNCAPPED, Holdings

_SAMPLE_CELLS: Final = 8192
_SLICE_CELLS: Final = 256
_KEPT_SHARE: Final = 2 / 3
_LIFT_AT_FREE_SHARE: Final = 0.2


@dataclass(slots=True)
class Trimmer:
    """Caps replicas, sweeps what lies beyond their caps, and lifts the caps when there is room."""

    books: Books
    has_capped: bool = False
    _work: deque[tuple[Holdings, Iterator[int]]] = field(default_factory=deque)

    @property
    def is_busy(self) -> bool:
        """Is memory beyond a cap still to be given back?"""
        return bool(self._work)

    def press(self, everyone: Iterable[Holdings]) -> None:
        """The arena is full: cap the replica that holds most, unless that is under way."""
        if self._work:
            return
        long = (holdings for holdings in everyone if holdings.depth_cap > 0)
        largest = max(long, key=Holdings.handles, default=None)
        if largest is not None and largest.handles():
            largest.depth_cap = max(0, self._cap(largest))
            self.has_capped = True
            self._work.append((largest, self._trimming(largest)))

    def abandon(self, holdings: Holdings) -> None:
        """These holdings are gone."""
        self._work = deque(work for work in self._work if work[0] is not holdings)

    def step(self, limit: int) -> None:
        """Look at about `limit` entries beyond the caps, or few more."""
        while limit > 0 and self._work:
            done = next(self._work[0][1], None)
            if done is None:
                self._work.popleft()
            else:
                limit -= done

    def lift(self, everyone: Iterable[Holdings]) -> None:
        """Take the caps off when enough is free again."""
        arena = self.books.arena
        enough = _LIFT_AT_FREE_SHARE * arena.max_bytes
        if self.has_capped and not self._work and arena.free_rows * ROW_BYTES > enough:
            self.has_capped = False
            for holdings in everyone:
                holdings.depth_cap = UNCAPPED

    def _cap(self, holdings: Holdings) -> int:
        """A depth that about a third of the blocks exceed (from a sample; blocks are hashed)."""
        depths = self.books.arena.depths
        samples = [
            depths[slots]
            for shelf in holdings.shelves.values()
            for slots in islice(shelf.table.chunks(_SAMPLE_CELLS), 2)
        ]
        everything = np.concatenate(samples)
        cap = int(np.quantile(everything, _KEPT_SHARE, method="lower"))
        return cap - 1 if cap == int(everything.max()) else cap

    def _trimming(self, holdings: Holdings) -> Iterator[int]:
        books, arena = self.books, self.books.arena
        for shelf in holdings.shelves.values():
            for slots in shelf.table.chunks(_SLICE_CELLS):
                deep = slots[arena.depths[slots] > holdings.depth_cap]
                if len(deep):
                    books.drop_slots(holdings, shelf, deep)
                    books.stats.trimmed += len(deep)
                yield len(slots) + len(deep)
            yield from shelf.table.merge()
        yield from books.holders.merge()
