"""One shelf's tray: what was stored last, and what is to be taken off the shelf's table.

Both are written for whole events, at the cost of one dict entry or less for each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from router.blocks import BlockHash, EngineHash
from router.index.arena import Slots


class Tray:
    """Handle → block and depth. Blocks lie in the order in which they came.

    `copies`: copies beyond the first, by handle.
    """

    __slots__ = ("_blocks", "_places", "_runs", "copies")

    def __init__(self) -> None:
        self.copies: dict[EngineHash, int] = {}
        self._places: dict[EngineHash, int] = {}
        self._blocks: list[BlockHash] = []
        """By place; what was taken out leaves its place unused."""
        self._runs: list[tuple[int, int]] = []
        """First place of each event's blocks, and what to add to a place for its depth."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, handle: EngineHash) -> bool:
        return handle in self._places

    def add_new(
        self, handles: Sequence[EngineHash], blocks: Sequence[BlockHash], depth: int
    ) -> bool:
        """Add blocks that follow one another, the first at `depth`.

        False: nothing was added, because a handle comes twice or lies here already.
        """
        places = self._places
        if not places.keys().isdisjoint(handles):
            return False
        first, wanted = len(self._blocks), len(places) + len(handles)
        places.update(zip(handles, range(first, first + len(handles)), strict=True))
        if len(places) < wanted:
            for handle in set(handles):
                del places[handle]
            return False
        self._blocks += blocks
        self._runs.append((first, depth - first))
        return True

    @property
    def size(self) -> int:
        """Places taken, those left unused included."""
        return len(self._blocks)

    def holds_any(self, handles: Sequence[EngineHash]) -> bool:
        """Does any of them lie here?"""
        return not self._places.keys().isdisjoint(handles)

    def block(self, handle: EngineHash) -> BlockHash | None:
        """The block of a handle."""
        place = self._places.get(handle)
        return None if place is None else self._blocks[place]

    def find(self, handle: EngineHash) -> tuple[BlockHash, int] | None:
        """Block and depth of a handle. O(events in the tray)."""
        place = self._places.get(handle)
        if place is None:
            return None
        offset = next(offset for first, offset in reversed(self._runs) if first <= place)
        return self._blocks[place], place + offset

    def pop(self, handle: EngineHash) -> BlockHash:
        """Take one out, with all its copies. KeyError if it does not lie here."""
        self.copies.pop(handle, None)
        return self._blocks[self._places.pop(handle)]

    def handles(self) -> tuple[EngineHash, ...]:
        """All handles."""
        return tuple(self._places)

    def blocks(self) -> list[BlockHash]:
        """All blocks, in the order of `handles`."""
        if len(self._places) == len(self._blocks):
            return self._blocks.copy()
        return [self._blocks[place] for place in self._places.values()]

    def depths(self) -> Slots:
        """All depths, in the order of `handles`."""
        places = np.fromiter(self._places.values(), np.int64, len(self._places))
        firsts, offsets = np.array(self._runs, np.int64).reshape(-1, 2).T
        depths: Slots = places + offsets[np.searchsorted(firsts, places, "right") - 1]
        return depths


class Removals:
    """Handles that wait to be taken off a table; one may come several times (copies)."""

    __slots__ = ("_count", "_known", "_parts", "_unread")

    def __init__(self) -> None:
        self._parts: list[Sequence[EngineHash]] = []
        self._count = 0
        self._known: set[EngineHash] = set()
        self._unread = 0
        """Parts from here on are not in `_known` yet: it is seldom asked for."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, handle: EngineHash) -> bool:
        self._known.update(*self._parts[self._unread :])
        self._unread = len(self._parts)
        return handle in self._known

    def add(self, handles: Sequence[EngineHash]) -> None:
        """One copy less of each."""
        self._parts.append(handles)
        self._count += len(handles)

    def rounds(self) -> Iterator[tuple[EngineHash, ...]]:
        """All of them, no handle twice in a round."""
        waiting = tuple(chain.from_iterable(self._parts))
        while waiting:
            distinct = dict.fromkeys(waiting)
            if len(distinct) == len(waiting):
                yield waiting
                return
            yield tuple(distinct)
            rest = []
            for handle in waiting:
                if handle in distinct:
                    del distinct[handle]
                else:
                    rest.append(handle)
            waiting = tuple(rest)
