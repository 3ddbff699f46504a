"""Ground floor: what a block is, and what can be said about it."""

from router.blocks.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    EventBatch,
)
from router.blocks.hashing import (
    NO_SEED,
    BlockHash,
    Hashes,
    Tokens,
    as_tokens,
    hash_blocks,
    item_seed,
    prefix_seed,
)
from router.blocks.wire import Form, Frame, MalformedFrame, decode_batch, encode_batch

__all__ = [
    "NO_SEED",
    "AllBlocksCleared",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "EngineHash",
    "Event",
    "EventBatch",
    "Form",
    "Frame",
    "Hashes",
    "MalformedFrame",
    "Tokens",
    "as_tokens",
    "decode_batch",
    "encode_batch",
    "hash_blocks",
    "item_seed",
    "prefix_seed",
]
