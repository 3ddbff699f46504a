"""Sets of replicas, as the bits of an int: each kept once, and known by a small number."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

import numpy as np
from numpy.typing import NDArray

from router.index.arena import Arena

import_module("numpy.ma")  # `np.unique` does so at its first call, and it takes 30 ms

EMPTY: Final = 0
SET_BYTES: Final = 240
"""What one set takes in a list, a dict and objects, about."""


class HolderSets:
    """Blocks that the same replicas hold share one number, so a block costs no int of its own."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.masks: list[int] = [0]
        self._uses: list[int] = [0]
        self._numbers: dict[int, int] = {0: EMPTY}
        self._free: list[int] = []

    def use(self, mask: int, uses: int = 1) -> int:
        """The set's number, for so many more blocks."""
        number = self._numbers.get(mask)
        if number is None:
            number = self._add(mask)
        self._uses[number] += uses
        return number

    def unuse(self, number: int, uses: int = 1) -> None:
        """So many blocks need it no longer."""
        self._uses[number] -= uses
        if self._uses[number] == 0 and number != EMPTY:
            self._arena.overhead -= SET_BYTES
            del self._numbers[self.masks[number]]
            self.masks[number] = 0
            self._free.append(number)

    def change(
        self, numbers: NDArray[np.uint64], change: Callable[[int], int]
    ) -> NDArray[np.uint64]:
        """The numbers of the changed sets, for blocks that had the sets `numbers`."""
        if (numbers == numbers[0]).all():
            old, count = int(numbers[0]), len(numbers)
            new = self.use(change(self.masks[old]), count)
            self._leave(old, count)
            return np.full(count, new, np.uint64)
        kinds, where, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        pairs = list(zip(kinds.tolist(), counts.tolist(), strict=True))
        fresh = [self.use(change(self.masks[kind]), count) for kind, count in pairs]
        for kind, count in pairs:
            self._leave(kind, count)
        changed: NDArray[np.uint64] = np.array(fresh, np.uint64)[where]
        return changed

    def holding(self, numbers: NDArray[np.uint64], bits: int) -> NDArray[np.bool_]:
        """Which of these sets have any of the bits."""
        kinds, where = np.unique(numbers, return_inverse=True)
        has = [self.masks[kind] & bits != 0 for kind in kinds.tolist()]
        held: NDArray[np.bool_] = np.array(has, np.bool_)[where]
        return held

    def _leave(self, number: int, uses: int) -> None:
        if number != EMPTY:
            self.unuse(number, uses)

    def _add(self, mask: int) -> int:
        self._arena.overhead += SET_BYTES
        if self._free:
            number = self._free.pop()
            self.masks[number] = mask
        else:
            number = len(self.masks)
            self.masks.append(mask)
            self._uses.append(0)
        self._numbers[mask] = number
        return number
