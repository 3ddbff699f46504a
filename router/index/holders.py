"""Block hash → the replicas that hold it."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from router.blocks import BlockHash
from router.index.arena import Arena, Flags, Keys
from router.index.holdings import Holdings
from router.index.lying import Lying
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
        self.lying = Lying()
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
        """`add` for many; a block that comes again has a holder then. ArenaFull: none was added."""
        slots, is_new = self._table.upsert_many(blocks)
        values = self._arena.values
        if is_new.all():
            values[slots] = self._sets.use(bit, len(slots))
            return ~is_new
        values[slots[is_new]] = EMPTY
        numbers = values[slots]
        held: Flags = self._sets.holding(numbers, bit)
        order = np.arange(len(slots), dtype=np.uint64)
        values[slots] = order
        once = values[slots] == order
        held |= ~once
        numbers = numbers[once]
        values[slots[once]] = self._sets.change(numbers, lambda mask: mask | bit)
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

    def walk(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of the prefix under each live bit; a hole ends a replica's match."""
        found: dict[ReplicaId, int] = {}
        if not prefix:
            return found
        extents = self.lying.extents(prefix)
        if not extents.mask and self._table.find(prefix[0]) == ABSENT:
            return found
        holders = self.live
        for start, end, mask in self._runs(prefix):
            gone = holders & ~mask
            if not gone:
                continue
            if gone & extents.mask:
                still, short = extents.split(gone, start, end)
                gone ^= still
                holders ^= gone
                for bit, until in short:
                    self._note(bit, until, found)
                    gone ^= bit
            else:
                holders ^= gone
            self._note(gone, start, found)
            if not holders:
                return found
        self._note(holders, len(prefix), found)
        return found

    def _runs(self, prefix: Sequence[BlockHash]) -> Iterator[tuple[int, int, int]]:
        """Start, end and holders in the tables, for each run of blocks that have the same."""
        if not self._table.count:
            yield 0, len(prefix), 0
            return
        keys = np.frombuffer(array("Q", prefix), np.uint64)
        start, step, mask_of = 0, _FIRST_LOOK, self._sets.masks.__getitem__
        while start < len(keys):
            slots = self._table.find_many(keys[start : start + step])
            numbers = self._arena.values.take(slots, mode="clip")
            numbers[slots == ABSENT] = EMPTY
            changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
            begins = [start, *(changes + start).tolist()]
            kinds = [int(numbers[0]), *numbers[changes].tolist()]
            yield from zip(
                begins, [*begins[1:], start + len(slots)], map(mask_of, kinds), strict=True
            )
            start, step = start + step, step * _LOOK_FURTHER

    def _note(self, mask: int, depth: int, found: dict[ReplicaId, int]) -> None:
        if not depth:
            return
        while mask:
            lowest = mask & -mask
            found[self._owners[lowest.bit_length() - 1]] = depth
            mask ^= lowest

    def _emptying(self, holdings: Holdings) -> Iterator[int]:
        for shelf in holdings.shelves.values():
            for slots in shelf.dismantle(_SWEEP_CELLS):
                if len(slots):
                    self.drop_many(np.unique(self._arena.values[slots]), holdings.bit)
                yield len(slots) + _SWEEP_CELLS
