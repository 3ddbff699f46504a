"""Our own chained block hash: the same prompt gives the same prefix, whatever engine holds it.

An engine's hash depends on its brand, release, algorithm and seed. Events carry the token ids, so
the index keys blocks by this hash instead and keeps the engine's as an opaque handle.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from router.blocks import xxh3
from router.compiled import is_compiled

TYPE_CODE: Final = "I"
"""Token ids travel as unsigned 32-bit integers in native order (`array("I")` or its bytes)."""

BYTES_PER_TOKEN: Final = 4
NO_SEED: Final = 0

BlockHash: TypeAlias = int
"""64 bits; names the whole prefix that ends at a block, not the block's tokens alone."""

Tokens: TypeAlias = "array[int] | bytes | memoryview"

HASH_CODE: Final = "Q"
BYTES_PER_HASH: Final = 8
Hashes: TypeAlias = "array[int]"
"""Block hashes in order (`array("Q")`): to compiled code they are 64-bit numbers as they lie."""

_MANY: Final = 4
"""From so many blocks on, compiled code is faster than a call for each, if there is any."""
_ONE_HASH: Final = array(HASH_CODE, [0])
_ID: Final = np.dtype(np.uint32)
_HASH: Final = np.dtype(np.uint64)


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
) -> Hashes:
    """Hash each full block together with all that precedes it.

    `tokens`: n ids, as `array("I")` or its bytes. `seed`: `prefix_seed(...)`, or the hash of the
    block before the first one. `items`: block number → `item_seed(...)`, for blocks that hold
    something beside tokens. Returns n // block_size hashes; a partial last block has none.

    h[i] = XXH3-64(ids of block i, little endian, seed = h[i-1])
    """
    step = block_size * BYTES_PER_TOKEN
    raw = tokens if type(tokens) is bytes else memoryview(tokens).cast("B").toreadonly()
    count = len(raw) // step
    if count >= _MANY and items is None and is_compiled(xxh3.chain):
        ids = np.frombuffer(raw, _ID, count * block_size)
        hashes = _ONE_HASH * count
        hashes[0] = seed
        xxh3.chain(ids if ids.flags.aligned else _aligned(ids), block_size, _cells(hashes))
        return hashes
    digest = xxh3_64_intdigest
    if count < _MANY and items is None:
        ends = range(step, len(raw) + 1, step)
        return array(HASH_CODE, [seed := digest(raw[end - step : end], seed) for end in ends])
    # numpy cuts into `bytes` faster than any loop
    blocks = np.frombuffer(raw[: count * step], f"V{step}").tolist()
    if items is None:
        return array(HASH_CODE, [seed := digest(block, seed) for block in blocks])
    hashes = array(HASH_CODE)
    for number, block in enumerate(blocks):
        seed = digest(block, seed ^ items.get(number, 0))
        hashes.append(seed)
    return hashes


def hash_each(tokens: array[int], block_size: int, seeds: Hashes) -> None:
    """Replace each seed by the hash of its block: as many blocks as seeds, of different chains."""
    if is_compiled(xxh3.hash_each):
        ids = np.frombuffer(memoryview(tokens).toreadonly(), _ID)
        xxh3.hash_each(ids, block_size, _cells(seeds))
        return
    raw, step = tokens.tobytes(), block_size * BYTES_PER_TOKEN
    for number, seed in enumerate(seeds):
        seeds[number] = xxh3_64_intdigest(raw[number * step : (number + 1) * step], seed)


def _cells(hashes: Hashes) -> NDArray[np.uint64]:
    return np.frombuffer(hashes, _HASH)


def _aligned(ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.frombuffer(ids.tobytes(), _ID)


def _tagged(tag: bytes, value: str | None) -> bytes:
    if value is None:
        return tag + b"-"
    raw = value.encode("utf-8", "surrogatepass")
    return b"%b=%d:%b" % (tag, len(raw), raw)
