"""The index in this process's memory: events in, counts of leading blocks out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from router.blocks import BlockHash, BlockRemoved, BlockStored, EngineHash
from router.index.arena import Arena, ArenaFull
from router.index.booking import Books
from router.index.bound import Trimmer
from router.index.dump import HoldingsDump, dump_holdings, load_shelf
from router.index.holders import Holders
from router.index.holdings import (
    GUESSES,
    Holdings,
    Shelf,
    ShelfKey,
    is_in_reach,
    is_matchable,
)
from router.index.origin import chain, root_seed
from router.index.parking import Parked, ParkingLot
from router.index.stats import IndexStats
from router.index.tray import Part
from router.index.trays import Trays
from router.replicas.replica import ReplicaId

DEFAULT_MAX_BYTES: Final = 512 * 2**20
TIDY_BLOCKS: Final = 2048
"""What `tidy` does in one call by default: about 1 ms."""

_TIDIED_PER_STORED: Final = 2
_ROWS_AT_HAND: Final = 8
_BLOCKS_PER_ROW: Final = 4


class MemoryIndex:
    """`PrefixIndex` in compact arrays.

    `clock`: monotonic seconds. `max_bytes`: bound on what the index takes; at the bound the
    replica that holds most forgets the ends of its longest chains (`bound`), and what finds no
    room meanwhile is refused; both are counted. `max_parked`, `parked_ttl_s`: how many events of
    a replica may wait for their parent, and for how long.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_parked: int = 1024,
        parked_ttl_s: float = 30.0,
    ) -> None:
        self._clock, self.max_bytes = clock, max_bytes
        self._max_parked, self._parked_ttl_s = max_parked, parked_ttl_s
        self._stats = IndexStats()
        self._arena = Arena(max_bytes)
        self._holders = Holders(self._arena)
        self._books = Books(self._arena, self._holders, self._stats)
        self._trays = Trays(self._arena, self._holders, self._books)
        self._trimmer = Trimmer(self._books)
        self._replicas: dict[ReplicaId, Holdings] = {}

    def __len__(self) -> int:
        """(block, replica) pairs held, each KV cache group for itself. O(replicas).

        A further copy of a block may count until `put_away`.
        """
        self._trays.settle()
        return sum(held.handles() for held in self._replicas.values())

    @property
    def bytes(self) -> int:
        """What the index takes, free rows included."""
        return self._arena.bytes + self._trays.bytes

    @property
    def stats(self) -> IndexStats:
        """The counters, brought up to date."""
        self._trays.settle()
        self._stats.parked = sum(len(shelf.parked) for _, shelf in self._shelves())
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
        if shelf.parked:
            self._stats.orphaned += shelf.parked.expire(self._clock())
        self._place_with_children(holdings, shelf, event)

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
        self._remove(holdings, shelf, event.block_hashes)

    def assume(self, replica_id: ReplicaId, prefix: Sequence[BlockHash], block_size: int) -> None:
        """The replica holds this prefix, by a guess: on a shelf of its own. Makes it known."""
        holdings = self._holdings(replica_id)
        holdings.block_sizes.add(block_size)
        shelf = self._shelf(holdings, GUESSES)
        if shelf is not None:
            known = bisect_left(prefix, 1, key=lambda block: not self._trays.holds(shelf, block))
            part = Part(holdings.bit, known, list(prefix[known:]), list(prefix[known:]))
            self._take(holdings, shelf, part, prefix[known - 1] if known else None)

    def unassume(self, replica_id: ReplicaId, blocks: Sequence[BlockHash]) -> None:
        """Take guesses back."""
        holdings = self._replicas.get(replica_id)
        if holdings is not None and GUESSES in holdings.shelves:
            self._remove(holdings, holdings.shelves[GUESSES], blocks)

    def expect_reused(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`."""
        self._holdings(replica_id).reports_reused = True

    def clear(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`. The block sizes seen are kept: they outlive a cache."""
        holdings = self._replicas.get(replica_id)
        if holdings is None:
            return
        self._retire(holdings)
        fresh = self._holders.open(replica_id)
        fresh.block_sizes = holdings.block_sizes
        fresh.reports_reused = holdings.reports_reused
        self._replicas[replica_id] = fresh

    def forget(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`."""
        holdings = self._replicas.pop(replica_id, None)
        if holdings is not None:
            self._retire(holdings)

    def match(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """See `PrefixIndex`."""
        self._trays.settle()
        found = self._holders.walk(prefix)
        if self._trimmer.has_capped:
            for replica_id, depth in found.items():
                found[replica_id] = min(depth, self._replicas[replica_id].depth_cap + 1)
        return found

    def block_sizes(self, replica_id: ReplicaId | None = None) -> frozenset[int]:
        """See `PrefixIndex`."""
        if replica_id is None:
            return frozenset().union(*(held.block_sizes for held in self._replicas.values()))
        holdings = self._replicas.get(replica_id)
        return frozenset(holdings.block_sizes) if holdings else frozenset()

    def blocks_of(self, replica_id: ReplicaId) -> set[BlockHash]:
        """All blocks that a replica holds; empty if it is not known. O(blocks)."""
        self._trays.settle()
        holdings = self._replicas.get(replica_id)
        return set(holdings.held(self._arena)) if holdings else set()

    def replicas(self) -> dict[ReplicaId, int]:
        """The replicas known, and how many blocks each holds. O(replicas)."""
        return {replica_id: held.handles() for replica_id, held in self._replicas.items()}

    def dump(self, replica_id: ReplicaId) -> HoldingsDump:
        """All that a replica holds (what waits for a parent apart). O(blocks)."""
        holdings = self._replicas.get(replica_id, Holdings(0))
        for shelf in holdings.shelves.values():
            self._put_away(holdings, shelf)
        return dump_holdings(self._arena, holdings)

    def load(self, replica_id: ReplicaId, dump: HoldingsDump) -> None:
        """Make a replica hold what was dumped, and nothing else."""
        self.clear(replica_id)
        holdings = self._holdings(replica_id)
        holdings.block_sizes.update(dump.block_sizes)
        for shelf_dump in dump.shelves:
            shelf = self._shelf(holdings, shelf_dump.group)
            if shelf is not None:
                load_shelf(self._books, holdings, shelf, shelf_dump)

    @property
    def is_untidy(self) -> bool:
        """Is memory of forgotten blocks still to be given back?"""
        return self._holders.is_sweeping or self._trimmer.is_busy

    def tidy(self, limit: int = TIDY_BLOCKS) -> None:
        """Give back memory of about `limit` forgotten blocks. Each `store` does a little of it."""
        self._holders.sweep(limit)
        self._trimmer.step(limit)
        self._trimmer.lift(self._replicas.values())

    def put_away(self) -> None:
        """Move all that was stored lately from trays into tables. `store` does so by itself."""
        for holdings, shelf in self._shelves():
            self._put_away(holdings, shelf)

    def _shelves(self) -> list[tuple[Holdings, Shelf]]:
        return [(held, each) for held in self._replicas.values() for each in held.shelves.values()]

    def _put_away(self, holdings: Holdings, shelf: Shelf) -> None:
        if self._arena.free_rows < _ROWS_AT_HAND + len(shelf.tray) // _BLOCKS_PER_ROW:
            self._trimmer.press(self._replicas.values())
            self.tidy()
        with suppress(ArenaFull):
            self._trays.put_away(holdings, shelf)

    def _holdings(self, replica_id: ReplicaId) -> Holdings:
        holdings = self._replicas.get(replica_id)
        if holdings is None:
            holdings = self._replicas[replica_id] = self._holders.open(replica_id)
        return holdings

    def _shelf(self, holdings: Holdings, group: ShelfKey) -> Shelf | None:
        shelf = holdings.shelves.get(group)
        if shelf is None:
            try:
                lot = ParkingLot(self._max_parked, self._parked_ttl_s)
                shelf = holdings.shelves[group] = Shelf(self._arena, lot)
            except ArenaFull:
                return None
        return shelf

    def _retire(self, holdings: Holdings) -> None:
        self._trimmer.abandon(holdings)
        for shelf in holdings.shelves.values():
            self._trays.drop(shelf)
        self._holders.retire(holdings)
        self._holders.sweep(TIDY_BLOCKS)

    def _place_with_children(self, holdings: Holdings, shelf: Shelf, event: BlockStored) -> None:
        ready = [Parked(event, 0.0)]
        while ready:
            parked = ready.pop()
            self._place(holdings, shelf, parked.event)
            if shelf.parked:
                for handle in parked.event.block_hashes:
                    if self._trays.holds(shelf, handle):
                        ready.extend(reversed(shelf.parked.take_children(handle)))
            if parked.removed:
                self._remove(holdings, shelf, parked.removed)

    def _place(self, holdings: Holdings, shelf: Shelf, event: BlockStored) -> None:
        seed, depth = 0, 0
        if event.parent_block_hash is None:
            seed = root_seed(event)
        else:
            parent = self._trays.find(shelf, event.parent_block_hash)
            if parent is None:
                self._stats.orphaned += shelf.parked.park(event, self._clock())
                return
            seed, depth = parent[0], parent[1] + 1
        count = len(event.block_hashes)
        blocks = chain(event, seed)
        if blocks is None:
            self._stats.unreadable += count
            return
        part = Part(holdings.bit, depth, list(event.block_hashes), blocks)
        if holdings.reports_reused and event.parent_block_hash is None:
            for missing in self._trays.missing(shelf, part):
                count -= len(missing.blocks)
                self._take(holdings, shelf, missing, None)
            self._stats.reported_again += count
        else:
            self._take(holdings, shelf, part, event.parent_block_hash)

    def _take(
        self, holdings: Holdings, shelf: Shelf, part: Part, parent: EngineHash | None
    ) -> None:
        count = min(len(part.blocks), max(0, holdings.depth_cap + 1 - part.depth))
        self._stats.stored += count
        if count < len(part.blocks):
            self._stats.refused += len(part.blocks) - count
            del part.blocks[count:], part.handles[count:]
        if not self._trays.hold(holdings, shelf, part, parent):
            self._put_away(holdings, shelf)
            with suppress(ArenaFull):
                self._trays.book(holdings, shelf, part)
        elif self._trays.is_due(shelf):
            self._put_away(holdings, shelf)
        elif self._trays.is_overfull:
            self._put_away(*max(self._shelves(), key=lambda pair: len(pair[1].tray)))

    def _remove(self, holdings: Holdings, shelf: Shelf, handles: Sequence[EngineHash]) -> None:
        if shelf.tray.holds_any(handles):
            self._put_away(holdings, shelf)
        self._trays.remove(holdings, shelf, handles)
