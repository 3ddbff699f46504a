"""What an engine says about its prefix cache. Field names are vLLM's; defaults are "not said"."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

EngineHash = int | bytes
"""An engine's own hash of a block: opaque, used only as a handle for parents and removals."""


class BlockStored(Struct, frozen=True):
    """Blocks that follow one another were stored.

    `token_ids` are those of all the blocks from the parent's end on; as they are read from a wire,
    `array("I")`, and many hashes `array("Q")`. Sliding-window groups and placeholders of offloading
    tiers name fewer (or no) hashes than the tokens would fill.
    """

    block_hashes: Sequence[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Sequence[Sequence[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: Sequence[Sequence[int]] | None = None


class BlockRemoved(Struct, frozen=True, tag_field="type", tag="BlockRemoved"):
    """One copy of each of these blocks left the cache."""

    block_hashes: tuple[EngineHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Struct, frozen=True, tag_field="type", tag="AllBlocksCleared"):
    """The cache was reset: nothing is held any more, on any tier."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, frozen=True):
    """What one engine step did to the cache. `ts`: Unix seconds, the engine's clock."""

    ts: float
    events: tuple[Event, ...]
    data_parallel_rank: int | None = None
    unknown_events: int = 0
    """Events of kinds that we don't know (a newer engine's); they are left out of `events`."""
