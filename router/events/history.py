"""What a replica without events probably holds: the prompts that we sent there ourselves."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from router.blocks import BlockHash
from router.index.protocol import PrefixIndex
from router.replicas.replica import ReplicaId

DEFAULT_BLOCK_SIZE: Final = 16
DEFAULT_BLOCKS: Final = 4096

_CONFIG: Final = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class IndexOfGuesses(PrefixIndex, Protocol):
    """An index that can be told of blocks by our own hashes."""

    def assume(self, replica_id: ReplicaId, prefix: Sequence[BlockHash], block_size: int) -> None:
        """The replica holds this prefix, as far as we can tell. Makes the replica known."""
        ...

    def unassume(self, replica_id: ReplicaId, blocks: Sequence[BlockHash]) -> None:
        """It probably does not hold these any more."""
        ...


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How an engine's cache is cut: tokens per block, and the number of blocks."""

    block_size: int = DEFAULT_BLOCK_SIZE
    blocks: int = DEFAULT_BLOCKS


def read_shape(metrics: str, ranks: int = 1) -> CacheShape:
    """From an engine's `/metrics`, as vLLM prints it; the default where it says nothing.

    vLLM sums `num_gpu_blocks` over data-parallel ranks, but `kv_cache_size_tokens` is per rank.
    """
    found = _CONFIG.search(metrics)
    labels = dict(_LABEL.findall(found[1])) if found else {}
    size = _number(labels.get("block_size"), DEFAULT_BLOCK_SIZE)
    tokens = _number(labels.get("kv_cache_size_tokens"), 0)
    blocks = _number(labels.get("num_gpu_blocks"), DEFAULT_BLOCKS * ranks) // ranks
    return CacheShape(size, max(1, tokens // size or blocks))


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else default


class RoutedHistory:
    """The blocks of prompts sent to one replica, in the order in which its engine would evict
    them: least recently used first, the ends of prompts before their beginnings.

    The index holds the same blocks, so that matching does not know the difference.
    """

    def __init__(self, index: IndexOfGuesses, replica_id: ReplicaId, shape: CacheShape) -> None:
        self._index = index
        self._replica_id = replica_id
        self._shape = shape
        self._used: OrderedDict[BlockHash, None] = OrderedDict()
        index.assume(replica_id, (), shape.block_size)

    def __len__(self) -> int:
        return len(self._used)

    def served(self, prefix: Sequence[BlockHash], hit_blocks: int | None) -> None:
        """A prompt was computed there; `hit_blocks`: how many the engine says it had (None:
        it doesn't say).

        A block that was believed to be there and was not has been evicted, and so has, by the
        order of eviction, whatever was used before it.
        """
        if hit_blocks is not None:
            # The last block of a prompt is never reused whole: a token must be computed.
            missed = [
                block for block in prefix[hit_blocks : len(prefix) - 1] if block in self._used
            ]
            if missed:
                self._forget_up_to(missed[0])
        for block in reversed(prefix):
            self._used[block] = None
            self._used.move_to_end(block)
        self._index.assume(self._replica_id, prefix, self._shape.block_size)
        self._drop(max(0, len(self._used) - self._shape.blocks))

    def clear(self) -> None:
        """Take all guesses back."""
        self._drop(len(self._used))

    def _forget_up_to(self, block: BlockHash) -> None:
        count = next(number for number, each in enumerate(self._used, 1) if each == block)
        self._drop(count)

    def _drop(self, count: int) -> None:
        gone = [self._used.popitem(last=False)[0] for _ in range(count)]
        if gone:
            self._index.unassume(self._replica_id, gone)
