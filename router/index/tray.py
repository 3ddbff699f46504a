"""One shelf's tray: what was stored last, and what is to be taken off the shelf's table.

Both are written for whole events, at the cost of an entry of a set or less for each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from router.blocks import BlockHash, EngineHash
from router.index.arena import Slots


@dataclass(slots=True, eq=False)
class Part:
    """Blocks that follow one another, the first at `depth`; `bit`: of the replica that holds
    them."""

    bit: int
    depth: int
    handles: list[EngineHash]
    blocks: list[BlockHash]


class Tray:
    """Blocks with their handles, in the order in which they came; no handle comes twice."""

    __slots__ = ("_handles", "_tips", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._handles: set[EngineHash] = set()
        self._tips: dict[EngineHash, Part] = {}
        """The part that ends with a handle: the usual parent of what comes next."""

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, handle: EngineHash) -> bool:
        return handle in self._handles

    def holds_any(self, handles: Sequence[EngineHash]) -> bool:
        """Does any of them lie here?"""
        return not self._handles.isdisjoint(handles)

    def claim(self, handles: Sequence[EngineHash]) -> bool:
        """Make sure that these handles are new here, and come once.

        False: they are not, and the tray is not fit for use until it has been emptied.
        """
        if not self._handles.isdisjoint(handles):
            return False
        wanted = len(self._handles) + len(handles)
        self._handles.update(handles)
        return len(self._handles) == wanted

    def add(self, part: Part, parent: EngineHash | None) -> bool:
        """Add blocks whose handles have been claimed. True: as a part of its own; False: they
        go on where the part that ends with `parent` ended."""
        before = self._tips.pop(parent, None) if parent is not None else None
        if before is None:
            self.parts.append(part)
            self._tips[part.handles[-1]] = part
            return True
        before.handles += part.handles
        before.blocks += part.blocks
        self._tips[part.handles[-1]] = before
        return False

    def find(self, handle: EngineHash) -> tuple[BlockHash, int] | None:
        """Block and depth of a handle. O(1) where a part ends, else O(blocks in the tray)."""
        part = self._tips.get(handle)
        if part is not None:
            return part.blocks[-1], part.depth + len(part.blocks) - 1
        if handle not in self._handles:
            return None
        part = next(part for part in self.parts if handle in part.handles)
        place = part.handles.index(handle)
        return part.blocks[place], part.depth + place

    def handles(self) -> list[EngineHash]:
        """All handles."""
        return list(chain.from_iterable([part.handles for part in self.parts]))

    def blocks(self) -> list[BlockHash]:
        """All blocks, in the order of `handles`."""
        return list(chain.from_iterable([part.blocks for part in self.parts]))

    def depths(self) -> Slots:
        """All depths, in the order of `handles`."""
        lengths = np.array([len(part.blocks) for part in self.parts], np.int64)
        firsts = np.array([part.depth for part in self.parts], np.int64)
        begins = np.cumsum(lengths) - lengths
        return np.repeat(firsts - begins, lengths) + np.arange(lengths.sum())


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

    def handles(self) -> list[EngineHash]:
        """All of them, in the order in which they came."""
        return list(chain.from_iterable(self._parts))
