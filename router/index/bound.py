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
from typing import Final

import numpy as np

from router.index import sweeping
from router.index.arena import Arena
from router.index.dump import listed
from router.index.holdings import Holdings
from router.index.layout import UNCAPPED
from router.index.stats import IndexStats

_SAMPLE: Final = 8192
_SLICE_PLACES: Final = 1024
_KEPT_SHARE: Final = 2 / 3
_LIFT_AT_FREE_SHARE: Final = 0.2


@dataclass(slots=True)
class Trimmer:
    """Caps replicas, sweeps what lies beyond their caps, and lifts the caps when there is room."""

    arena: Arena
    stats: IndexStats
    _capped: dict[int, Holdings] = field(default_factory=dict)
    _work: deque[tuple[Holdings, Iterator[bool]]] = field(default_factory=deque)

    @property
    def is_busy(self) -> bool:
        """Is memory beyond a cap still to be given back?"""
        return bool(self._work)

    def press(self, everyone: Iterable[Holdings]) -> None:
        """Memory is short: cap the replica that holds most, unless that is under way."""
        if self._work:
            return
        largest = max(everyone, key=lambda held: held.handles(self.arena), default=None)
        if largest is not None and largest.handles(self.arena):
            self._set_cap(largest, self._cap(largest))
            self._work.append((largest, self._trimming(largest)))

    def abandon(self, holdings: Holdings) -> None:
        """These holdings are gone."""
        self._work = deque(work for work in self._work if work[0] is not holdings)
        self._capped.pop(holdings.slot, None)

    def step(self, limit: int) -> None:
        """Look at about `limit` entries beyond the caps, or few more."""
        while limit > 0 and self._work:
            if next(self._work[0][1], None) is None:
                self._work.popleft()
            limit -= _SLICE_PLACES

    def lift(self) -> None:
        """Take the caps off when enough is free again."""
        if self._capped and not self._work and self.arena.free_share > _LIFT_AT_FREE_SHARE:
            while self._capped:
                self._set_cap(self._capped.popitem()[1], int(UNCAPPED))

    def _set_cap(self, holdings: Holdings, cap: int) -> None:
        if cap != UNCAPPED:
            self._capped[holdings.slot] = holdings
        self.arena.write(sweeping.set_cap, holdings.slot, cap)

    def _cap(self, holdings: Holdings) -> int:
        """A depth that about a third of the blocks exceed (from a sample; blocks are hashed)."""
        depths = np.concatenate(
            [listed(self.arena, shelf, _SAMPLE).depths for shelf in holdings.shelves.values()]
        )
        cap = int(np.quantile(depths, _KEPT_SHARE, method="lower"))
        return max(0, cap - 1 if cap == int(depths.max()) else cap)

    def _trimming(self, holdings: Holdings) -> Iterator[bool]:
        for shelf in holdings.shelves.values():
            where = 0
            while where < sweeping.ALL_KEYS:
                where, trimmed = self.arena.write(sweeping.trim, shelf.table, where, _SLICE_PLACES)
                self.stats.trimmed += trimmed
                yield True
