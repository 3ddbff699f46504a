"""Our own chained block hash: the same prompt gives the same prefix, whatever engine holds it.

An engine's hash depends on its brand, release, algorithm and seed. Events carry the token ids, so
the index keys blocks by this hash instead and keeps the engine's as an opaque handle.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import numpy as np
from xxhash import xxh3_64_intdigest

TYPE_CODE: Final = "I"
"""Token ids travel as unsigned 32-bit integers in native order (`array("I")` or its bytes)."""

BYTES_PER_TOKEN: Final = 4
NO_SEED: Final = 0

BlockHash: TypeAlias = int
"""64 bits; names the whole prefix that ends at a block, not the block's tokens alone."""

Tokens: TypeAlias = "array[int] | bytes | memoryview"


def as_tokens(ids: Iterable[int]) -> array[int]:
    """Token ids as the array that `hash_blocks` reads. OverflowError outside 0..2**32-1."""
    return array(TYPE_CODE, ids)


def prefix_seed(salt: str | None = None, adapter: str | None = None) -> int:
    """The chain's start: prompts under another salt or adapter share no block.

    Each part is tagged and carries its length, so a salt cannot pass for an adapter's name, nor
    can two parts be cut at another place.
    """
    if salt is None and adapter is None:
        return NO_SEED
    parts = [_tagged(b"adapter", adapter), _tagged(b"salt", salt)]
    return xxh3_64_intdigest(b"".join(parts))


def item_seed(item: object) -> int:
    """What sets a block apart beside its tokens (a multimodal item's key), as 64 bits."""
    return xxh3_64_intdigest(_tagged(b"item", repr(item)))


def hash_blocks(
    tokens: Tokens,
    block_size: int,
    seed: int = NO_SEED,
    items: Mapping[int, int] | None = None,
) -> list[BlockHash]:
    """Hash each full block together with all that precedes it.

    `tokens`: n ids, as `array("I")` or its bytes. `seed`: `prefix_seed(...)`, or the hash of the
    block before the first one. `items`: block number → `item_seed(...)`, for blocks that hold
    something beside tokens. Returns n // block_size hashes; a partial last block has none.

    h[i] = XXH3-64(ids of block i, little endian, seed = h[i-1])
    """
    step = block_size * BYTES_PER_TOKEN
    view = memoryview(tokens).cast("B")
    # numpy cuts into `bytes` faster than any loop
    blocks = np.frombuffer(view[: len(view) // step * step], f"V{step}").tolist()
    digest = xxh3_64_intdigest
    if items is None:
        return [seed := digest(block, seed) for block in blocks]
    hashes: list[BlockHash] = []
    for number, block in enumerate(blocks):
        seed = digest(block, seed ^ items.get(number, 0))
        hashes.append(seed)
    return hashes


def _tagged(tag: bytes, value: str | None) -> bytes:
    if value is None:
        return tag + b"-"
    raw = value.encode("utf-8", "surrogatepass")
    return b"%b=%d:%b" % (tag, len(raw), raw)
