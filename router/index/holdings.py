"""What one replica holds: engine hash → our hash, and how many copies of each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import numpy as np
from xxhash import xxh3_64_intdigest

from router.blocks import BlockHash, BlockRemoved, BlockStored, EngineHash
from router.index.arena import Arena, Keys, Slots
from router.index.parking import ParkingLot
from router.index.stats import IndexStats
from router.index.table import Table
from router.index.tray import Removals, Tray

ShelfKey: TypeAlias = "int | str | None"
"""The KV cache group of a shelf, as the engine numbers it (None: it names none), or GUESSES."""

GUESSES: Final = "guesses"
"""The shelf of blocks that no event has told of."""

MAX_DEPTH: Final = 2**16 - 1
"""Blocks deeper than this count as no deeper."""

UNCAPPED: Final = 2**62

_IN_REACH: Final = frozenset((None, "GPU"))
_REMOTE: Final = "REMOTE"
# Groups in which every block of a prefix stays until it is evicted. The others (sliding window,
# mamba, chunked) register only some blocks, and a hit there cannot be told from the events.
_WHOLE_PREFIX: Final = frozenset(("full_attention", "mla_attention", "sink_full_attention"))

_MASK: Final = 2**64 - 1
# Engines may number their blocks as they like; multiplying spreads such numbers over all bits.
_SPREAD: Final = 0x9E3779B97F4A7C15
_OFFSET: Final = 0xD1B54A32D192ED03
_COPY_BYTES: Final = 110


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


def is_matchable(event: BlockStored, stats: IndexStats) -> bool:
    """Is it about blocks that prompts can be matched with? What is not is counted."""
    count = len(event.block_hashes)
    if not is_in_reach(event):
        stats.out_of_reach += count
    elif not keeps_whole_prefix(event):
        stats.partial_groups += count
    elif not event.token_ids:
        stats.placeholders += count
    else:
        return True
    return False


def key_of(handle: EngineHash) -> int:
    """An engine hash as an evenly spread 64-bit key. Different ints of 64 bits stay different."""
    number = handle if isinstance(handle, int) else xxh3_64_intdigest(handle)
    return (number * _SPREAD + _OFFSET) & _MASK


def keys_of(handles: Sequence[EngineHash]) -> Keys:
    """`key_of` for many."""
    try:
        numbers = np.frombuffer(array("Q", cast(Sequence[int], handles)), np.uint64)
    except (TypeError, OverflowError):  # bytes, or ints below 0
        return np.array([key_of(handle) for handle in handles], np.uint64)
    keys: Keys = numbers * np.uint64(_SPREAD) + np.uint64(_OFFSET)
    return keys


class Shelf:
    """The blocks of one KV cache group.

    Engines store equal blocks more than once and remove the copies one by one, so copies are
    counted; nearly all blocks have one, so only further ones take space. ArenaFull if the index
    is at its bound.
    """

    __slots__ = (
        "_arena",
        "extra_copies",
        "gone",
        "parked",
        "table",
        "tray",
    )

    def __init__(self, arena: Arena, parked: ParkingLot) -> None:
        self._arena = arena
        self.table = Table(arena)
        self.parked = parked
        self.extra_copies: dict[int, int] = {}
        self.tray = Tray()
        """What was stored last; see `trays`."""
        self.gone = Removals()
        """What is to be removed from the table."""

    def add_copy(self, key: int) -> None:
        """Count one more copy of a block that is there."""
        if key not in self.extra_copies:
            self._arena.overhead += _COPY_BYTES
        self.extra_copies[key] = self.extra_copies.get(key, 0) + 1

    def drop_extra_copy(self, key: int) -> bool:
        """Uncount a copy; False if there is but one, which is the caller's to remove."""
        extra = self.extra_copies.get(key, 0)
        if extra > 1:
            self.extra_copies[key] = extra - 1
        elif extra == 1:
            self.drop_extra_copies(key)
        return extra > 0

    def drop_extra_copies(self, key: int) -> None:
        """Only one copy is left."""
        if self.extra_copies.pop(key, None) is not None:
            self._arena.overhead -= _COPY_BYTES

    def dismantle(self, cells: int) -> Iterator[Slots]:
        """The slots that hold blocks, a few at a time; memory is given back on the way."""
        yield from self.table.dismantle(cells)
        self._arena.overhead -= _COPY_BYTES * len(self.extra_copies)
        self.extra_copies.clear()


@dataclass(slots=True)
class Holdings:
    """One replica's shelves, and its bit in the sets of holders.

    `other_handles`: our hash → engine hashes beyond the first that stand for the same block
    (engines may hash what we don't, as tokens that follow the block). `depth_cap`: blocks deeper in
    their chain than this are not kept. `reports_reused`: see `PrefixIndex.expect_reused`.
    """

    slot: int
    block_sizes: set[int] = field(default_factory=set)
    shelves: dict[ShelfKey, Shelf] = field(default_factory=dict)
    other_handles: dict[BlockHash, int] = field(default_factory=dict)
    depth_cap: int = UNCAPPED
    reports_reused: bool = False

    @property
    def bit(self) -> int:
        """The replica's bit in a mask of holders."""
        return 1 << self.slot

    def held(self, arena: Arena) -> Iterator[BlockHash]:
        """Every block held; one that several engine hashes stand for comes several times."""
        for shelf in self.shelves.values():
            yield from shelf.tray.blocks()
            for slots in shelf.table.chunks(4096):
                yield from arena.values[slots].tolist()

    def handles(self) -> int:
        """Number of (group, engine hash) pairs held."""
        return sum(shelf.table.count + len(shelf.tray) for shelf in self.shelves.values())
