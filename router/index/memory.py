"""The index in this process's memory: events in, counts of leading blocks out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from router.blocks import BlockHash, BlockRemoved, BlockStored
from router.index import kernels
from router.index.arena import Allocate, Arena, halves
from router.index.bound import Trimmer
from router.index.copying import Copy
from router.index.dump import HoldingsDump, listed, load_shelf
from router.index.holdings import (
    GUESSES,
    Holdings,
    Shelf,
    ShelfKey,
    is_in_reach,
    is_matchable,
    keeps_whole_prefix,
)
from router.index.parking import ParkingLot
from router.index.placing import Placer
from router.index.slots import NO_SLOT, Slots
from router.index.stats import IndexStats
from router.replicas.replica import ReplicaId

DEFAULT_MAX_BYTES: Final = 512 * 2**20
TIDY_BLOCKS: Final = 2048
"""What `tidy` does in one call by default: about 1 ms."""

_TIDIED_PER_STORED: Final = 2


class MemoryIndex:
    """`PrefixIndex` in one array.

    `clock`: monotonic seconds. `max_bytes`: bound on what the index takes; at the bound the
    replica that holds most forgets the ends of its longest chains (`bound`), and what finds no
    room meanwhile is refused; both are counted. `max_parked`, `parked_ttl_s`: how many events of
    a replica may wait for their parent, and for how long. `allocate`: where the array comes from,
    so that other processes may read it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_parked: int = 1024,
        parked_ttl_s: float = 30.0,
        allocate: Allocate | None = None,
    ) -> None:
        self._clock, self.max_bytes = clock, max_bytes
        self._max_parked, self._parked_ttl_s = max_parked, parked_ttl_s
        self._stats = IndexStats()
        self._arena = Arena(max_bytes, allocate)
        self._slots = Slots(self._arena)
        self._trimmer = Trimmer(self._arena, self._stats)
        self._replicas: dict[ReplicaId, Holdings] = {}
        self._copies: list[Copy] = []
        self._placer = Placer(self._arena, self._stats, self._copies, clock)

    def __len__(self) -> int:
        """(block, replica) pairs held, each KV cache group for itself. O(replicas)."""
        return sum(self.replicas().values())

    @property
    def bytes(self) -> int:
        """What the index takes, what is free again included."""
        return self._arena.bytes

    @property
    def stats(self) -> IndexStats:
        """The counters, brought up to date."""
        shelves = [each for held in self._replicas.values() for each in held.shelves.values()]
        self._stats.parked = sum(len(shelf.parked) for shelf in shelves)
        return self._stats

    def store(self, replica_id: ReplicaId, event: BlockStored) -> None:
        """See `PrefixIndex`. Blocks whose parent is unknown are parked, not taken for roots."""
        holdings = self._holdings(replica_id)
        if self.is_untidy:
            self.tidy(_TIDIED_PER_STORED * len(event.block_hashes))
        if not is_matchable(event, self._stats):
            return
        holdings.block_sizes.add(event.block_size)
        shelf = self._shelf(holdings, event.group_idx)
        if shelf is None:
            self._stats.refused += len(event.block_hashes)
            return
        self._placer.place(holdings, shelf, event)
        self._keep_bound()

    def store_all(self, replica_id: ReplicaId, events: Sequence[BlockStored]) -> None:
        """See `PrefixIndex`."""
        holdings = self._holdings(replica_id)
        if self.is_untidy:
            self.tidy(_TIDIED_PER_STORED * len(events))
        shelf = holdings.shelves.get(events[0].group_idx)
        is_matched = is_in_reach(events[0]) and keeps_whole_prefix(events[0])
        at = 0
        while at < len(events):
            if shelf is not None and is_matched and not shelf.parked:
                at += self._placer.grow(shelf, events, at)
            if at < len(events):  # its parent is one of these, or is not known
                self.store(replica_id, events[at])
                at += 1
        self._keep_bound()

    def remove(self, replica_id: ReplicaId, event: BlockRemoved) -> None:
        """See `PrefixIndex`. Only the copy in the same group and in reach is meant."""
        if not is_in_reach(event):
            self._stats.out_of_reach += len(event.block_hashes)
            return
        holdings = self._replicas.get(replica_id)
        shelf = holdings.shelves.get(event.group_idx) if holdings else None
        if holdings is None or shelf is None:
            self._stats.removed_unknown += len(event.block_hashes)
            return
        self._placer.remove(shelf, event.block_hashes)

    def assume(self, replica_id: ReplicaId, prefix: Sequence[BlockHash], block_size: int) -> None:
        """The replica holds this prefix, by a guess: on a shelf of its own. Makes it known."""
        holdings = self._holdings(replica_id)
        holdings.block_sizes.add(block_size)
        shelf = self._shelf(holdings, GUESSES)
        if shelf is not None:
            known = bisect_left(prefix, 1, key=lambda block: not self._placer.holds(shelf, block))
            if known < len(prefix):
                blocks = halves(prefix[known:])
                self._placer.take(shelf, known, blocks, blocks)
            self._keep_bound()

    def unassume(self, replica_id: ReplicaId, blocks: Sequence[BlockHash]) -> None:
        """Take guesses back."""
        holdings = self._replicas.get(replica_id)
        if holdings is not None and GUESSES in holdings.shelves:
            self._placer.remove(holdings.shelves[GUESSES], blocks)

    def expect_reused(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`."""
        self._holdings(replica_id).reports_reused = True

    def clear(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`. The block sizes seen are kept: they outlive a cache."""
        holdings = self._replicas.get(replica_id)
        if holdings is None:
            return
        self._retire(holdings)
        fresh = self._slots.open(replica_id)
        fresh.block_sizes = holdings.block_sizes
        fresh.reports_reused = holdings.reports_reused
        self._replicas[replica_id] = fresh

    def forget(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`."""
        holdings = self._replicas.pop(replica_id, None)
        if holdings is not None:
            self._retire(holdings)
            self._slots.part(replica_id)

    def match(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """See `PrefixIndex`."""
        return self._slots.match(prefix)

    def block_sizes(self, replica_id: ReplicaId | None = None) -> frozenset[int]:
        """See `PrefixIndex`."""
        if replica_id is None:
            return frozenset().union(*(held.block_sizes for held in self._replicas.values()))
        holdings = self._replicas.get(replica_id)
        return frozenset(holdings.block_sizes) if holdings else frozenset()

    def blocks_of(self, replica_id: ReplicaId) -> set[BlockHash]:
        """All blocks that a replica holds; empty if it is not known. O(blocks)."""
        holdings = self._replicas.get(replica_id)
        shelves = holdings.shelves.values() if holdings else ()
        return {block for each in shelves for block in listed(self._arena, each).blocks.tolist()}

    def replicas(self) -> dict[ReplicaId, int]:
        """The replicas known, and how many blocks each holds. O(replicas)."""
        return {known: held.handles(self._arena) for known, held in self._replicas.items()}

    def number_of(self, replica_id: ReplicaId) -> int:
        """What it is called in the array, for those who read that; -1: nothing."""
        return self._slots.number_of(replica_id)

    def dump(self, replica_id: ReplicaId) -> HoldingsDump:
        """All that a replica holds (what waits for a parent apart). O(blocks)."""
        copy = self.copy(replica_id)
        while copy.step():
            pass
        return copy.dump()

    def copy(self, replica_id: ReplicaId) -> Copy:
        """The same, a piece at a time."""
        return Copy(self._arena, self._replicas.get(replica_id, Holdings(NO_SLOT)), self._copies)

    def load(self, replica_id: ReplicaId, dump: HoldingsDump) -> None:
        """Make a replica hold what was dumped, and nothing else."""
        self.clear(replica_id)
        holdings = self._holdings(replica_id)
        holdings.block_sizes.update(dump.block_sizes)
        for shelf_dump in dump.shelves:
            shelf = self._shelf(holdings, shelf_dump.group)
            if shelf is not None:
                self._stats.refused += load_shelf(self._arena, shelf, shelf_dump)
            self._keep_bound()

    @property
    def is_untidy(self) -> bool:
        """Is memory of forgotten blocks still to be given back?"""
        return self._slots.is_sweeping or self._trimmer.is_busy

    def tidy(self, limit: int = TIDY_BLOCKS) -> None:
        """Give back memory of about `limit` forgotten blocks. Each `store` does a little of it."""
        self._slots.sweep(limit)
        self._trimmer.step(limit)
        self._trimmer.lift()

    def _keep_bound(self) -> None:
        self._arena.ask_for_huge_pages()
        if self._arena.take_pressed():
            self._trimmer.press(self._replicas.values())
            self.tidy()

    def _holdings(self, replica_id: ReplicaId) -> Holdings:
        holdings = self._replicas.get(replica_id)
        if holdings is None:
            holdings = self._replicas[replica_id] = self._slots.open(replica_id)
        return holdings

    def _shelf(self, holdings: Holdings, group: ShelfKey) -> Shelf | None:
        shelf = holdings.shelves.get(group)
        if shelf is None and holdings.slot != NO_SLOT:
            table = self._arena.write(kernels.new_shelf, holdings.slot)
            if table:
                lot = ParkingLot(self._max_parked, self._parked_ttl_s)
                shelf = holdings.shelves[group] = Shelf(table, lot)
        return shelf

    def _retire(self, holdings: Holdings) -> None:
        self._trimmer.abandon(holdings)
        for copy in self._copies:
            for shelf in holdings.shelves.values():
                copy.void(shelf.table)
        self._slots.retire(holdings)
        self._slots.sweep(TIDY_BLOCKS)
