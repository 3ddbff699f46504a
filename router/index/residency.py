"""How much of a replica's cache its requests in flight hold: nobody else can use that."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from router.blocks import BlockHash

STRIDE: Final = 8
"""One block of so many is looked at: enough to see what prompts share, and cheap."""
MARKED_TOKENS: Final = 128
"""Here one for so many tokens, for blocks may be large: what prompts share between two marks
counts as not shared, and a fleet of full caches looks fuller than it is."""


@dataclass(slots=True)
class Residency:
    """One replica's distinct tokens in flight. Prompts that share a beginning hold it once.

    A block hash names all before it, so a marked block stands for those up to it since the last
    one; what is behind a prompt's last marked block counts as its own.

    What is added is only noted, and counted when somebody wants the sum or `settle` is called:
    that can be while the engine is at work already.
    """

    _tokens: int = 0
    _marks: dict[BlockHash, int] = field(default_factory=dict)
    _noted: list[tuple[Sequence[BlockHash], int, int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Those of all requests that were added and not dropped."""
        self.settle()
        return self._tokens

    def add(self, prefix: Sequence[BlockHash], block_size: int, prompt_tokens: int) -> None:
        """A request is sent."""
        self._noted.append((prefix, block_size, prompt_tokens))

    def settle(self) -> None:
        """Count what was added. O(tokens / MARKED_TOKENS)."""
        while self._noted:
            self._count(*self._noted.pop())

    def _count(self, prefix: Sequence[BlockHash], block_size: int, prompt_tokens: int) -> None:
        stride = _stride(block_size)
        marks, known = prefix[stride - 1 :: stride], self._marks
        fresh = 0
        for mark in marks:
            count = known.get(mark, 0)
            fresh += not count
            known[mark] = count + 1
        self._tokens += prompt_tokens - (len(marks) - fresh) * stride * block_size

    def drop(self, prefix: Sequence[BlockHash], block_size: int, prompt_tokens: int) -> None:
        """It is over: the exact reverse of `add`."""
        self.settle()
        stride = _stride(block_size)
        marks, known = prefix[stride - 1 :: stride], self._marks
        kept = 0
        for mark in marks:
            count = known[mark] - 1
            if count:
                known[mark] = count
                kept += 1
            else:
                del known[mark]
        self._tokens -= prompt_tokens - kept * stride * block_size


def _stride(block_size: int) -> int:
    """Blocks from one mark to the next."""
    return max(1, MARKED_TOKENS // max(block_size, 1))


def common_blocks(one: Sequence[BlockHash], other: Sequence[BlockHash]) -> int:
    """Leading blocks that two prefixes share. Each hash names all before it, so bisection does."""
    low, high = 0, min(len(one), len(other))
    if high and one[high - 1] == other[high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
