"""Block hash → the replicas that hold it."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

import numpy as np

from router.blocks import BlockHash
from router.index.arena import Arena, Flags, Keys
from router.index.holdings import Holdings
from router.index.sets import EMPTY, HolderSets
from router.index.table import ABSENT, Table
from router.replicas.replica import ReplicaId

_FIRST_LOOK: Final = 1024
_LOOK_FURTHER: Final = 2
_SWEEP_CELLS: Final = 256
"""Cells of a directory emptied at a time: some 1400 blocks, well under a millisecond."""


class Holders:
    """Gives each replica a bit (a slot), and keeps for each block the set of its holders.

    Retiring a slot takes it out of `live` at once, so that nothing matches it any more; its bits
    are swept out of the sets a few at a time, and only then is it given out again. So dropping
    a million blocks does not hold up the event loop.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._table = Table(arena)
        self._sets = HolderSets(arena)
        self.live = 0
        self.tray: dict[BlockHash, int] = {}
        """Block → bits of those in whose trays it lies."""
        self._owners: dict[int, ReplicaId] = {}
        self._free: list[int] = []
        self._retired: deque[tuple[Holdings, Iterator[int]]] = deque()

    @property
    def is_sweeping(self) -> bool:
        """Are there bits of retired slots left in the sets?"""
        return bool(self._retired)

    def open(self, replica_id: ReplicaId) -> Holdings:
        """Empty holdings with a slot of their own."""
        slot = self._free.pop() if self._free else len(self._owners) + len(self._retired)
        self._owners[slot] = replica_id
        holdings = Holdings(slot)
        self.live |= holdings.bit
        return holdings

    def retire(self, holdings: Holdings) -> None:
        """Take a slot out of every match from now on."""
        self.live &= ~holdings.bit
        del self._owners[holdings.slot]
        self._retired.append((holdings, self._emptying(holdings)))

    def sweep(self, limit: int) -> None:
        """Take about `limit` retired blocks out of the sets, or few more. O(limit)."""
        while limit > 0 and self._retired:
            holdings, steps = self._retired[0]
            done = next(steps, None)
            if done is None:
                self._retired.popleft()
                self._free.append(holdings.slot)
            else:
                limit -= done

    def add(self, block: BlockHash, bit: int) -> bool:
        """One more holder. True if it was one already. ArenaFull: the block is not kept."""
        slot = self._table.find(block)
        if slot == ABSENT:
            slot = self._table.insert(block)
            self._arena.value_cells[slot] = self._sets.use(bit)
            return False
        number = self._arena.value_cells[slot]
        mask = self._sets.masks[number]
        if mask & bit:
            return True
        self._arena.value_cells[slot] = self._sets.use(mask | bit)
        self._sets.unuse(number)
        return False

    def drop(self, block: BlockHash, bit: int) -> None:
        """A holder less."""
        slot = self._table.find(block)
        if slot == ABSENT:
            return
        number = self._arena.value_cells[slot]
        rest = self._sets.masks[number] & ~bit
        if rest:
            self._arena.value_cells[slot] = self._sets.use(rest)
        else:
            self._table.delete(slot)
        self._sets.unuse(number)

    def add_many(self, blocks: Keys, bit: int) -> Flags:
        """`add` for blocks that are there once each. ArenaFull: none was added."""
        slots, is_new = self._table.upsert_many(blocks)
        numbers = self._arena.values[slots]
        numbers[is_new] = EMPTY
        held: Flags = ~is_new
        if held.any():
            held = self._sets.holding(numbers, bit)
        self._arena.values[slots] = self._sets.change(numbers, lambda mask: mask | bit)
        return held

    def drop_many(self, blocks: Keys, bit: int) -> None:
        """`drop` for blocks that are there once each."""
        slots = self._table.find_many(blocks)
        slots = slots[slots != ABSENT]
        if not len(slots):
            return
        numbers = self._sets.change(self._arena.values[slots], lambda mask: mask & ~bit)
        self._arena.values[slots] = numbers
        self._table.delete_many(slots[numbers == EMPTY])

    def merge(self) -> Iterator[int]:
        """Give back rows that blocks have left; yields rows looked at."""
        return self._table.merge()

    def unmark_many(self, blocks: Sequence[BlockHash], bit: int) -> None:
        """These blocks lie in the replica's tray no longer. Each must be marked, and come once."""
        tray = self.tray
        masks = list(map(tray.pop, blocks))
        if masks.count(bit) == len(masks):  # nobody else's: the usual case
            return
        for block, mask in zip(blocks, masks, strict=True):
            if mask != bit:
                tray[block] = mask ^ bit

    def walk(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of the prefix under each live bit; a hole ends a replica's match."""
        found: dict[ReplicaId, int] = {}
        if not prefix or not self._has(prefix[0]):
            return found
        holders, in_tray = self.live, self.tray.get
        for start, end, mask in self._runs(prefix):
            in_table = holders & mask
            if in_table == holders:
                continue
            elsewhere = holders ^ in_table
            if elsewhere & in_tray(prefix[start], 0):
                holders = in_table | self._walk_tray(elsewhere, prefix, (start, end), found)
            else:
                self._note(elsewhere, start, found)
                holders = in_table
            if not holders:
                return found
        self._note(holders, len(prefix), found)
        return found

    def _has(self, block: BlockHash) -> bool:
        return block in self.tray or self._table.find(block) != ABSENT

    def _walk_tray(
        self,
        holders: int,
        prefix: Sequence[BlockHash],
        run: tuple[int, int],
        found: dict[ReplicaId, int],
    ) -> int:
        """Which of `holders` hold a run of blocks in their trays; the others' depth is noted."""
        lying = map(self.tray.get, prefix[slice(*run)], repeat(0))
        for depth, mask in enumerate(lying, run[0]):
            still = holders & mask
            if still != holders:
                self._note(holders ^ still, depth, found)
                if not still:
                    return 0
                holders = still
        return holders

    def _runs(self, prefix: Sequence[BlockHash]) -> Iterator[tuple[int, int, int]]:
        """Start, end and holders in the tables, for each run of blocks that have the same."""
        if not self._table.count:
            yield 0, len(prefix), 0
            return
        keys = np.frombuffer(array("Q", prefix), np.uint64)
        start, step, masks = 0, _FIRST_LOOK, self._sets.masks
        while start < len(keys):
            slots = self._table.find_many(keys[start : start + step])
            numbers = self._arena.values[slots]
            numbers[slots == ABSENT] = EMPTY
            changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
            begins = [start, *(changes + start).tolist()]
            kinds = [int(numbers[0]), *numbers[changes].tolist()]
            ends = [*begins[1:], start + len(slots)]
            for at, end, kind in zip(begins, ends, kinds, strict=True):
                yield at, end, masks[kind]
            start, step = start + step, step * _LOOK_FURTHER

    def _note(self, mask: int, depth: int, found: dict[ReplicaId, int]) -> None:
        while mask and depth:
            lowest = mask & -mask
            found[self._owners[lowest.bit_length() - 1]] = depth
            mask ^= lowest

    def _emptying(self, holdings: Holdings) -> Iterator[int]:
        for shelf in holdings.shelves.values():
            for slots in shelf.dismantle(_SWEEP_CELLS):
                if len(slots):
                    self.drop_many(np.unique(self._arena.values[slots]), holdings.bit)
                yield len(slots) + _SWEEP_CELLS
