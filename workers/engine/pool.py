"""The paged KV cache: blocks with reference counts, cached blocks by hash, and the eviction order.

Rules that vLLM's captures show: equal blocks are not merged, so a hash may have several copies; a
block that nobody uses stays cached until its place is needed; the last block of the sequence that
was freed longest ago goes first; block 0 is never handed out.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

BlockId: TypeAlias = int


class BlockPool:
    """`num_blocks` as in vLLM's `num_gpu_blocks`: one of them is the null block, never usable."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError("a pool needs at least 2 blocks: one of them is never handed out")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hashes: list[int | None] = [None] * num_blocks
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._cached: dict[int, dict[BlockId, None]] = {}
        self._computing: dict[int, BlockId] = {}
        self._evicted: list[int] = []

    @property
    def capacity(self) -> int:
        """Blocks that can be in use at once."""
        return self.num_blocks - 1

    @property
    def free_count(self) -> int:
        """Blocks that nobody uses; most of them are still cached."""
        return len(self._free)

    @property
    def used_count(self) -> int:
        """Blocks that sequences hold."""
        return self.capacity - len(self._free)

    def match(self, hashes: Sequence[int], limit: int) -> list[BlockId]:
        """The blocks that hold the leading hashes, at most `limit`, up to the first miss.

        A block that the step being planned will compute counts as well: within one forward pass
        each layer's keys are written before any sequence reads them.
        """
        found: list[BlockId] = []
        for value in hashes[:limit]:
            copies = self._cached.get(value)
            block = next(iter(copies)) if copies else self._computing.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[BlockId]) -> int:
        """How many of these blocks nobody uses: to take them costs free blocks too."""
        return sum(not self._references[block] for block in blocks)

    def acquire(self, blocks: Iterable[BlockId]) -> None:
        """Use blocks that `match` found; they can't be evicted until released."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` blocks for new tokens. What they held is evicted (see `take_evicted`)."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} free")
        taken: list[BlockId] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._evict(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def promise(self, block: BlockId, value: int) -> None:
        """The step being planned fills this block: sequences planned after it may share it."""
        self._computing.setdefault(value, block)

    def store(self, block: BlockId, value: int) -> None:
        """The block is computed: from now on any sequence can match it."""
        self._hashes[block] = value
        self._cached.setdefault(value, {})[block] = None

    def end_step(self) -> None:
        """All that was promised has been stored."""
        self._computing.clear()

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Stop using a sequence's blocks, given in the sequence's order.

        The tail goes into the queue first, so it is evicted first. Blocks that hold nothing
        reusable go to the very front.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            self._free[block] = None
            if self._hashes[block] is None:
                self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget all cached blocks. False, and nothing happens, while any block is in use."""
        if self.used_count:
            return False
        self._hashes = [None] * self.num_blocks
        self._cached.clear()
        return True

    def take_evicted(self) -> list[int]:
        """Hashes whose copies were evicted since the last call, one entry per copy, in order."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def holds(self, value: int) -> bool:
        """Whether any copy with this hash is cached."""
        return value in self._cached

    def copies(self) -> dict[int, int]:
        """Cached hash → number of copies, in use or not."""
        return {value: len(blocks) for value, blocks in self._cached.items()}

    def eviction_order(self) -> list[BlockId]:
        """Free blocks, the next to be handed out first."""
        return list(self._free)

    def references(self, block: BlockId) -> int:
        """How many sequences use the block."""
        return self._references[block]

    def twin(self) -> "BlockPool":
        """A pool in the same state that goes its own way: for asking what would happen."""
        other = BlockPool(2)
        other.num_blocks = self.num_blocks
        other._references, other._hashes = self._references[:], self._hashes[:]
        other._free = self._free.copy()
        other._cached = {value: blocks.copy() for value, blocks in self._cached.items()}
        other._computing, other._evicted = self._computing.copy(), self._evicted[:]
        return other

    def _evict(self, block: BlockId) -> None:
        value = self._hashes[block]
        if value is None:
            return
        self._hashes[block] = None
        copies = self._cached[value]
        del copies[block]
        if not copies:
            del self._cached[value]
        self._evicted.append(value)
