"""A slot for each life of a replica's cache: what the sets of holders are made of."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from router.blocks import BlockHash
from router.compiled import Cells
from router.index import kernels, sweeping
from router.index.arena import Arena, halves
from router.index.holdings import Holdings
from router.index.layout import MAX_SLOTS
from router.replicas.replica import ReplicaId

NO_SLOT: Final = -1
_SLICE_BLOCKS: Final = 512


class Slots:
    """Gives each replica a slot, and says which of them hold a prefix.

    Retiring a slot takes it out of every match at once; it is swept out of the sets of holders a
    few blocks at a time, and only then given out again. So dropping a million blocks does not hold
    up the event loop.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._numbers: dict[ReplicaId, int] = {}
        self._names: dict[int, ReplicaId] = {}
        self._next_number = 0
        self._free: list[int] = []
        self._given = 0
        self._retired: deque[tuple[Holdings, Iterator[bool]]] = deque()
        self._found: Cells = np.empty(2, np.uint32)
        self._keys = random.Random(0x57470001)

    @property
    def is_sweeping(self) -> bool:
        """Are there retired slots left in the sets?"""
        return bool(self._retired)

    def open(self, replica_id: ReplicaId) -> Holdings:
        """Empty holdings with a slot of their own, or none: there is no memory, or none is left."""
        while not self._free and self._given >= MAX_SLOTS and self._retired:
            self.sweep(_SLICE_BLOCKS)
        slot = self._free[-1] if self._free else self._given
        key = self._keys.getrandbits(64)
        halves_of_key = key & 0xFFFFFFFF, key >> 32
        owner = self._owner(replica_id)
        if slot >= MAX_SLOTS or not self._arena.write(
            sweeping.open_slot, slot, owner, *halves_of_key
        ):
            return Holdings(NO_SLOT)
        if self._free:
            self._free.pop()
        else:
            self._given += 1
            self._found = np.empty(3 * self._given + 2, np.uint32)
        return Holdings(slot)

    def retire(self, holdings: Holdings) -> None:
        """Take a slot out of every match from now on."""
        if holdings.slot != NO_SLOT:
            self._arena.write(sweeping.close_slot, holdings.slot)
            self._retired.append((holdings, self._emptying(holdings)))

    def part(self, replica_id: ReplicaId) -> None:
        """A replica will not come back, or as another one."""
        self._names.pop(self._numbers.pop(replica_id, -1), None)

    def sweep(self, limit: int) -> None:
        """Take about `limit` blocks of retired slots, or few more, out of the sets."""
        while limit > 0 and self._retired:
            holdings, slices = self._retired[0]
            if next(slices, None) is None:
                self._retired.popleft()
                self._free.append(holdings.slot)
            limit -= _SLICE_BLOCKS

    def number_of(self, replica_id: ReplicaId) -> int:
        """-1: it has none."""
        return self._numbers.get(replica_id, -1)

    def match(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of the prefix under each live slot; a hole ends a replica's match."""
        count = kernels.match(self._arena.cells, halves(prefix), self._found)
        found = self._found[: 2 * max(count, 0)].tolist()
        names = map(self._names.__getitem__, found[::2])
        return dict(zip(names, found[1::2], strict=True))

    def _owner(self, replica_id: ReplicaId) -> int:
        number = self._numbers.get(replica_id)
        if number is None:
            number = self._numbers[replica_id] = self._next_number
            self._names[number] = replica_id
            self._next_number = (number + 1) & 0xFFFFFFFF
        return number

    def _emptying(self, holdings: Holdings) -> Iterator[bool]:
        write = self._arena.write
        for shelf in holdings.shelves.values():
            where = 0
            while where < sweeping.ALL_KEYS:
                where = write(sweeping.sweep, shelf.table, where, _SLICE_BLOCKS)
                yield True
        write(sweeping.drop_others, holdings.slot)
