"""What lies in trays, as a prompt sees it.

A block's hash names all that precedes it, so a part of a tray that begins with one of a prompt's
blocks goes on with the prompt's next ones up to some point, and with none behind it. One entry
for each part is thus enough to find all of its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from router.blocks import BlockHash
from router.index.tray import Part


class Lying:
    """The parts of all trays, by their first block."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: dict[BlockHash, list[Part]] = {}

    def add(self, part: Part) -> None:
        """A new part of a tray; it may grow."""
        self._starts.setdefault(part.blocks[0], []).append(part)

    def take_out(self, parts: Iterable[Part]) -> None:
        """These lie there no longer."""
        for part in parts:
            siblings = self._starts[part.blocks[0]]
            siblings.remove(part)
            if not siblings:
                del self._starts[part.blocks[0]]

    def extents(self, prefix: Sequence[BlockHash]) -> Extents:
        """Which stretches of the prefix lie in whose trays. O(prefix + parts found)."""
        extents, starts = Extents(len(prefix)), self._starts
        if starts:
            at = -1
            for block in filter(starts.__contains__, prefix):
                at = prefix.index(block, at + 1)
                for part in starts[block]:
                    end = at + len(part.blocks)
                    if end > len(prefix) or part.blocks[-1] != prefix[end - 1]:
                        end = at + _shared(part.blocks, prefix, at)
                    extents.add(part.bit, at, end)
        return extents


class Extents:
    """By replica's bit: from which block to which its trays hold a prefix. Asked from the
    prefix's start to its end."""

    __slots__ = ("_by_bit", "_covered", "_ends", "_length", "mask")

    def __init__(self, length: int) -> None:
        self._length = length
        self._by_bit: dict[int, list[tuple[int, int]]] = {}
        self._covered = 0
        self._ends: list[tuple[int, int]] = []
        """A heap of those covered: up to which block, and whom."""
        self.mask = 0

    def add(self, bit: int, start: int, end: int) -> None:
        """One more stretch; those that start earlier are added earlier."""
        if self.mask & bit:
            self._by_bit[bit].append((start, end))
        else:
            self._by_bit[bit] = [(start, end)]
            self.mask |= bit

    def split(self, asked: int, start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
        """Of the replicas `asked`: those whose trays hold the blocks from `start` to `end`, and
        for each other one that holds some of them its bit and up to where."""
        while self._ends and self._ends[0][0] < end:
            self._covered ^= heappop(self._ends)[1]
        short = []
        waiting = asked & self.mask & ~self._covered
        while waiting:
            bit = waiting & -waiting
            waiting ^= bit
            until = start
            for begin, stop in self._by_bit[bit]:
                if begin <= until < stop:
                    until = stop
            if until >= end:
                self._covered |= bit
                if until < self._length:
                    heappush(self._ends, (until, bit))
            elif until > start:
                short.append((bit, until))
        return asked & self._covered, short


def _shared(blocks: Sequence[BlockHash], prefix: Sequence[BlockHash], at: int) -> int:
    """How many blocks of a part that begins at block `at` of the prefix it shares with it."""
    low, high = 1, min(len(blocks), len(prefix) - at)
    if blocks[high - 1] == prefix[at + high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if blocks[middle - 1] == prefix[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
