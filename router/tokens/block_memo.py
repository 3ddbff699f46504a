"""Block hashes of prompts' beginnings, remembered.

A conversation's next turn repeats its beginning, and so its blocks. The memo works on whole
segments of blocks: a segment's hashes are found by its bytes and by the hash before it, so it
serves every prompt that begins alike, whoever tokenized it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final, TypeAlias

from xxhash import xxh3_128_digest

from router.blocks import NO_SEED, BlockHash, hash_blocks
from router.blocks.hashing import BYTES_PER_TOKEN

SEGMENT_BLOCKS: Final = 128
ENTRY_BYTES: Final = 400
"""Key, array and the dict's own part of one entry, beside its hashes (measured)."""

BYTES_PER_HASH: Final = 8

_Key: TypeAlias = "tuple[int, int, bytes]"


class BlockMemo:
    """Hashes blocks like `hash_blocks`; ten times faster where it knows the beginning.

    Least recently used segments go first. Segments are known by 128 bits of XXH3 over their
    tokens; our block hashes have 64, so this adds nothing to the chance of a wrong match.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_entries = max_bytes // (ENTRY_BYTES + SEGMENT_BLOCKS * BYTES_PER_HASH)
        self._segments: OrderedDict[_Key, array[int]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        return len(self._segments) * (ENTRY_BYTES + SEGMENT_BLOCKS * BYTES_PER_HASH)

    def hash_blocks(self, tokens: bytes, block_size: int, seed: int = NO_SEED) -> list[BlockHash]:
        """The same list as `blocks.hash_blocks(tokens, block_size, seed)`."""
        step = SEGMENT_BLOCKS * block_size * BYTES_PER_TOKEN
        view = memoryview(tokens)
        hashes: list[BlockHash] = []
        at = 0
        for at in range(0, len(view) - step + 1, step):
            hashes.extend(self._segment(view[at : at + step], block_size, seed))
            seed = hashes[-1]
        rest = len(hashes) * block_size * BYTES_PER_TOKEN
        hashes += hash_blocks(view[rest:], block_size, seed)
        return hashes

    def _segment(self, tokens: memoryview, block_size: int, seed: int) -> array[int]:
        key = (block_size, seed, xxh3_128_digest(tokens))
        found = self._segments.get(key)
        if found is not None:
            self.hits += 1
            self._segments.move_to_end(key)
            return found
        self.misses += 1
        found = array("Q", hash_blocks(tokens, block_size, seed))
        if self._max_entries:
            self._segments[key] = found
            if len(self._segments) > self._max_entries:
                self._segments.popitem(last=False)
        return found
