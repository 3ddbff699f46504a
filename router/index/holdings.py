"""What one replica holds: engine hash → our hash, and how many copies of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from router.blocks import BlockHash, BlockRemoved, BlockStored, EngineHash
from router.index.parking import ParkingLot

ShelfKey: TypeAlias = "int | None"
"""The KV cache group of a shelf, as the engine numbers it (None: it names none)."""

_IN_REACH: Final = frozenset((None, "GPU"))
_REMOTE: Final = "REMOTE"
# Groups in which every block of a prefix stays until it is evicted. The others (sliding window,
# mamba, chunked) register only some blocks, and a hit there cannot be told from the events.
_WHOLE_PREFIX: Final = frozenset(("full_attention", "mla_attention", "sink_full_attention"))


def is_in_reach(event: BlockStored | BlockRemoved) -> bool:
    """Is it about the engine's own memory? Slower tiers are counted, but not matched yet."""
    return event.medium in _IN_REACH and event.locality != _REMOTE


def keeps_whole_prefix(event: BlockStored) -> bool:
    """Is the event's group one whose blocks tell how much of a prefix will hit?

    Releases that number groups without saying their kind (vLLM 0.20, 0.21) put full attention
    first, so there only group 0 counts.
    """
    if event.kv_cache_spec_kind is None:
        return event.group_idx in (None, 0)
    return event.kv_cache_spec_kind in _WHOLE_PREFIX


@dataclass(slots=True)
class Shelf:
    """The blocks of one KV cache group.

    Engines store equal blocks more than once and remove the copies one by one, so copies are
    counted; nearly all blocks have one, so only further ones take space.
    """

    parked: ParkingLot
    blocks: dict[EngineHash, BlockHash] = field(default_factory=dict)
    extra_copies: dict[EngineHash, int] = field(default_factory=dict)

    def add_copy(self, handle: EngineHash) -> None:
        """Count one more copy of a block that is there."""
        self.extra_copies[handle] = self.extra_copies.get(handle, 0) + 1

    def drop_extra_copy(self, handle: EngineHash) -> bool:
        """Uncount a copy; False if there is but one, which is the caller's to remove."""
        extra = self.extra_copies.get(handle, 0)
        if extra > 1:
            self.extra_copies[handle] = extra - 1
        elif extra == 1:
            del self.extra_copies[handle]
        return extra > 0


@dataclass(slots=True)
class Holdings:
    """One replica's shelves, and its bit in the index's masks.

    `other_handles`: our hash → engine hashes beyond the first that stand for the same block
    (engines may hash what we don't, as tokens that follow the block).
    """

    slot: int
    block_sizes: set[int] = field(default_factory=set)
    shelves: dict[ShelfKey, Shelf] = field(default_factory=dict)
    other_handles: dict[BlockHash, int] = field(default_factory=dict)

    @property
    def bit(self) -> int:
        """The replica's bit in a mask of holders."""
        return 1 << self.slot

    def held(self) -> Iterator[BlockHash]:
        """Every block held; one that several engine hashes stand for comes several times."""
        for shelf in self.shelves.values():
            yield from shelf.blocks.values()

    def handles(self) -> int:
        """Number of (group, engine hash) pairs held."""
        return sum(len(shelf.blocks) for shelf in self.shelves.values())


def drain(shelves: Iterable[Shelf]) -> Iterator[BlockHash]:
    """Empty the shelves block by block, so that memory is given back while sweeping."""
    for shelf in shelves:
        while shelf.blocks:
            yield shelf.blocks.popitem()[1]
