"""Token ids that are kept because their prompt comes again: so are their block hashes."""

from __future__ import annotations

from typing import Final

from router.blocks.hashing import BYTES_PER_HASH, NO_SEED, Hashes, hash_blocks

MOST: Final = 4
"""Of one prompt the hashes under so many block sizes and seeds are kept."""
_SHARE: Final = 8
"""Hashes that are larger than the ids' eighth aren't: no engine's blocks are that small."""


class RememberedIds(bytes):
    """A prompt's ids as `hash_blocks` reads them. Any thread may ask for its hashes."""

    _hashes: dict[tuple[int, int], Hashes]

    def __new__(cls, ids: bytes) -> RememberedIds:
        self = super().__new__(cls, ids)
        self._hashes = {}
        return self

    def __sizeof__(self) -> int:
        """With all the hashes that may come to be kept: whoever bounds a sum needs it to stay."""
        return super().__sizeof__() + MOST * len(self) // _SHARE

    def hash_blocks(self, block_size: int, seed: int = NO_SEED) -> Hashes:
        """`hash_blocks` of these ids. Everybody gets the same array: it is not to be changed."""
        key = block_size, seed
        found = self._hashes.get(key)
        if found is None:
            found = hash_blocks(self, block_size, seed)
            if len(self._hashes) < MOST and _SHARE * BYTES_PER_HASH * len(found) <= len(self):
                self._hashes[key] = found
        return found
