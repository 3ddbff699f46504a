"""How much of a replica's cache its requests in flight hold: nobody else can use that."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from router.blocks import BlockHash

STRIDE: Final = 8
"""One block of so many is looked at: enough to see what prompts share, and cheap."""


@dataclass(slots=True)
class Residency:
    """One replica's distinct tokens in flight. Prompts that share a beginning hold it once.

    A block hash names all before it, so a marked block stands for the `STRIDE` blocks up to it;
    what is behind a prompt's last marked block counts as its own.

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
        """Count what was added. O(blocks / STRIDE)."""
        while self._noted:
            self._count(*self._noted.pop())

    def _count(self, prefix: Sequence[BlockHash], block_size: int, prompt_tokens: int) -> None:
        marks, known = prefix[STRIDE - 1 :: STRIDE], self._marks
        fresh = 0
        for mark in marks:
            count = known.get(mark, 0)
            fresh += not count
            known[mark] = count + 1
        self._tokens += prompt_tokens - (len(marks) - fresh) * STRIDE * block_size

    def drop(self, prefix: Sequence[BlockHash], block_size: int, prompt_tokens: int) -> None:
        """It is over: the exact reverse of `add`."""
        self.settle()
        marks, known = prefix[STRIDE - 1 :: STRIDE], self._marks
        kept = 0
        for mark in marks:
            count = known[mark] - 1
            if count:
                known[mark] = count
                kept += 1
            else:
                del known[mark]
        self._tokens -= prompt_tokens - kept * STRIDE * block_size


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
