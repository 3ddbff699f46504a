"""What one replica holds: its slot, and for each KV cache group a shelf: engine hash → our hash."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import numpy as np
from xxhash import xxh3_64_intdigest

from router.blocks import BlockRemoved, BlockStored, EngineHash
from router.compiled import Cells
from router.index.arena import Arena, halves
from router.index.layout import COUNT
from router.index.parking import ParkingLot
from router.index.stats import IndexStats

ShelfKey: TypeAlias = "int | str | None"
"""The KV cache group of a shelf, as the engine numbers it (None: it names none), or GUESSES."""

GUESSES: Final = "guesses"
"""The shelf of blocks that no event has told of."""

_IN_REACH: Final = frozenset((None, "GPU"))
_REMOTE: Final = "REMOTE"
# Groups in which every block of a prefix stays until it is evicted. The others (sliding window,
# mamba, chunked) register only some blocks, and a hit there cannot be told from the events.
_WHOLE_PREFIX: Final = frozenset(("full_attention", "mla_attention", "sink_full_attention"))
_MASK: Final = 2**64 - 1


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


def handles_of(hashes: Sequence[EngineHash]) -> Cells:
    """Engine hashes as 64-bit numbers, as kernels want them. Different ints of 64 bits stay
    different; bytes are hashed."""
    try:
        return halves(cast(Sequence[int], hashes))
    except TypeError:  # bytes
        return halves([_number(each) for each in hashes])
    except OverflowError:  # some are below 0, as SGLang's
        try:
            return np.frombuffer(array("q", cast(Sequence[int], hashes)), np.uint32)
        except (TypeError, OverflowError):
            return halves([_number(each) for each in hashes])


def _number(handle: EngineHash) -> int:
    return handle & _MASK if isinstance(handle, int) else xxh3_64_intdigest(handle)


@dataclass(slots=True)
class Shelf:
    """The blocks of one KV cache group: `table` is where its head lies.

    Engines store equal blocks more than once and remove the copies one by one, so copies are
    counted (up to 65,535).
    """

    table: int
    parked: ParkingLot


@dataclass(slots=True)
class Holdings:
    """One replica's shelves, and its slot in the sets of holders (-1: there was none to be had).

    `reports_reused`: see `PrefixIndex.expect_reused`.
    """

    slot: int
    block_sizes: set[int] = field(default_factory=set)
    shelves: dict[ShelfKey, Shelf] = field(default_factory=dict)
    reports_reused: bool = False

    def handles(self, arena: Arena) -> int:
        """Number of (group, engine hash) pairs held."""
        return sum(int(arena.cells[shelf.table + COUNT]) for shelf in self.shelves.values())
