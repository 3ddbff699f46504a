"""The index in this process's memory: one dict of masks, and a dict of handles per replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from router.blocks import BlockHash, BlockRemoved, BlockStored, EngineHash, as_tokens, hash_blocks
from router.index.holdings import Holdings, Shelf, is_in_reach, keeps_whole_prefix
from router.index.origin import item_seeds, root_seed
from router.index.parking import Parked, ParkingLot
from router.index.slots import SlotTable
from router.replicas.replica import ReplicaId

_SWEPT_PER_CLEAR: Final = 4096
_SWEPT_PER_STORED: Final = 2


@dataclass(slots=True)
class IndexStats:
    """What became of the blocks that events named. All but `parked` only grow; unit: blocks."""

    stored: int = 0
    removed: int = 0
    removed_unknown: int = 0
    """Removals of blocks that we never had, or had forgotten."""
    parked: int = 0
    """Waiting for their parent now, in events (not blocks)."""
    orphaned: int = 0
    """Given up because the parent did not come in time, or too many waited."""
    refused: int = 0
    """Not taken because the index was at its bound."""
    out_of_reach: int = 0
    """Of slower tiers, or of other machines."""
    partial_groups: int = 0
    """Of groups (sliding window, mamba) that don't tell how much of a prefix will hit."""
    placeholders: int = 0
    """Without tokens, as some offloading tiers publish them."""
    unreadable: int = 0
    """With hashes and tokens that don't fit together, or tokens that are no ids."""
    conflicts: int = 0
    """An engine hash that was in use for another block: the older meaning was forgotten."""


class MemoryIndex:
    """`PrefixIndex` in dicts.

    `clock`: monotonic seconds. `max_blocks`: bound on (block, replica) pairs; at the bound new
    blocks are refused, and counted, until others are removed. `max_parked`, `parked_ttl_s`: how
    many events of a replica may wait for their parent, and for how long.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_blocks: int = 4_000_000,
        max_parked: int = 1024,
        parked_ttl_s: float = 30.0,
    ) -> None:
        self._clock = clock
        self._max_blocks = max_blocks
        self._max_parked = max_parked
        self._parked_ttl_s = parked_ttl_s
        self._slots = SlotTable()
        self._replicas: dict[ReplicaId, Holdings] = {}
        self._pairs = 0
        self._stats = IndexStats()

    def __len__(self) -> int:
        """(block, replica) pairs held, each KV cache group for itself."""
        return self._pairs

    @property
    def stats(self) -> IndexStats:
        """The counters, brought up to date."""
        self._stats.parked = sum(
            len(shelf.parked) for held in self._replicas.values() for shelf in held.shelves.values()
        )
        return self._stats

    def store(self, replica_id: ReplicaId, event: BlockStored) -> None:
        """See `PrefixIndex`. Blocks whose parent is unknown are parked, not taken for roots."""
        holdings = self._replicas.get(replica_id)
        if holdings is None:
            holdings = self._replicas[replica_id] = self._slots.open(replica_id)
        self._slots.sweep(_SWEPT_PER_STORED * len(event.block_hashes))
        if not self._counts_for_matching(event):
            return
        holdings.block_sizes.add(event.block_size)
        shelf = holdings.shelves.get(event.group_idx)
        if shelf is None:
            shelf = Shelf(ParkingLot(self._max_parked, self._parked_ttl_s))
            holdings.shelves[event.group_idx] = shelf
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
        for handle in event.block_hashes:
            self._remove_copy(holdings, shelf, handle)

    def clear(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`. The block sizes seen are kept: they outlive a cache."""
        holdings = self._replicas.get(replica_id)
        if holdings is None:
            return
        self._retire(holdings)
        fresh = self._slots.open(replica_id)
        fresh.block_sizes = holdings.block_sizes
        self._replicas[replica_id] = fresh

    def forget(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`."""
        holdings = self._replicas.pop(replica_id, None)
        if holdings is not None:
            self._retire(holdings)

    def match(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """See `PrefixIndex`."""
        return self._slots.walk(prefix)

    def block_sizes(self, replica_id: ReplicaId | None = None) -> frozenset[int]:
        """See `PrefixIndex`."""
        if replica_id is None:
            return frozenset().union(*(held.block_sizes for held in self._replicas.values()))
        holdings = self._replicas.get(replica_id)
        return frozenset(holdings.block_sizes) if holdings else frozenset()

    def blocks_of(self, replica_id: ReplicaId) -> set[BlockHash]:
        """All blocks that a replica holds; empty if it is not known. O(blocks)."""
        holdings = self._replicas.get(replica_id)
        return set(holdings.held()) if holdings else set()

    def replicas(self) -> dict[ReplicaId, int]:
        """The replicas known, and how many blocks each holds. O(replicas)."""
        return {replica_id: held.handles() for replica_id, held in self._replicas.items()}

    def _counts_for_matching(self, event: BlockStored) -> bool:
        count = len(event.block_hashes)
        if not is_in_reach(event):
            self._stats.out_of_reach += count
        elif not keeps_whole_prefix(event):
            self._stats.partial_groups += count
        elif not event.token_ids:
            self._stats.placeholders += count
        else:
            return True
        return False

    def _retire(self, holdings: Holdings) -> None:
        self._pairs -= holdings.handles()
        self._slots.retire(holdings)
        self._slots.sweep(_SWEPT_PER_CLEAR)

    def _place_with_children(self, holdings: Holdings, shelf: Shelf, event: BlockStored) -> None:
        ready = [Parked(event, 0.0)]
        while ready:
            parked = ready.pop()
            self._place(holdings, shelf, parked.event)
            if shelf.parked:
                for handle in parked.event.block_hashes:
                    if handle in shelf.blocks:
                        ready.extend(reversed(shelf.parked.take_children(handle)))
            for handle in parked.removed:
                self._remove_copy(holdings, shelf, handle)

    def _place(self, holdings: Holdings, shelf: Shelf, event: BlockStored) -> None:
        parent = event.parent_block_hash
        seed = root_seed(event) if parent is None else shelf.blocks.get(parent)
        if seed is None:
            self._stats.orphaned += shelf.parked.park(event, self._clock())
            return
        count = len(event.block_hashes)
        if self._pairs + self._slots.unswept + count > self._max_blocks:
            self._stats.refused += count
            return
        blocks = _chain(event, seed)
        if blocks is None:
            self._stats.unreadable += count
            return
        self._stats.stored += count
        self._hold(holdings, shelf, event.block_hashes, blocks)

    def _hold(
        self,
        holdings: Holdings,
        shelf: Shelf,
        handles: Sequence[EngineHash],
        blocks: Sequence[BlockHash],
    ) -> None:
        masks, bit = self._slots.masks, holdings.bit
        by_handle, others = shelf.blocks, holdings.other_handles
        for handle, block in zip(handles, blocks, strict=True):
            known = by_handle.get(handle)
            if known == block:
                shelf.add_copy(handle)
                continue
            if known is not None:
                self._stats.conflicts += 1
                shelf.extra_copies.pop(handle, None)
                self._release(holdings, shelf, handle)
            by_handle[handle] = block
            self._pairs += 1
            mask = masks.get(block, 0)
            if mask & bit:
                others[block] = others.get(block, 0) + 1
            else:
                masks[block] = mask | bit

    def _remove_copy(self, holdings: Holdings, shelf: Shelf, handle: EngineHash) -> None:
        if handle not in shelf.blocks:
            if not (shelf.parked and shelf.parked.note_removed(handle)):
                self._stats.removed_unknown += 1
            return
        self._stats.removed += 1
        if not (shelf.extra_copies and shelf.drop_extra_copy(handle)):
            self._release(holdings, shelf, handle)

    def _release(self, holdings: Holdings, shelf: Shelf, handle: EngineHash) -> None:
        block = shelf.blocks.pop(handle)
        self._pairs -= 1
        others = holdings.other_handles
        if block in others:
            others[block] -= 1
            if not others[block]:
                del others[block]
            return
        masks = self._slots.masks
        mask = masks[block] & ~holdings.bit
        if mask:
            masks[block] = mask
        else:
            del masks[block]


def _chain(event: BlockStored, seed: int) -> list[BlockHash] | None:
    """Our hashes of the event's blocks; None if its tokens don't fill exactly those blocks."""
    if event.block_size < 1 or len(event.token_ids) != len(event.block_hashes) * event.block_size:
        return None
    try:
        tokens = as_tokens(event.token_ids)
    except (TypeError, OverflowError):  # EAGLE trees of SGLang publish pairs of ids
        return None
    return hash_blocks(tokens, event.block_size, seed, item_seeds(event))
