"""How much could have been reused: by one unlimited cache, and by one of the fleet's size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.blocks import BlockHash


@dataclass(slots=True)
class Bounds:
    """Sees prompts in order of arrival, and answers when they end.

    `capacity` in blocks; `is_counting`: off while a run warms up. As if each prompt were cached the
    instant that it arrives: no router can do better.
    """

    block_size: int
    capacity: int
    is_counting: bool = True
    prompt_tokens: int = 0
    _unlimited_hits: int = 0
    _pooled_hits: int = 0
    _ever: set[BlockHash] = field(default_factory=set)
    _pool: OrderedDict[BlockHash, None] = field(default_factory=OrderedDict)

    @property
    def unlimited(self) -> float:
        return self._unlimited_hits / max(self.prompt_tokens, 1)

    @property
    def pooled(self) -> float:
        return self._pooled_hits / max(self.prompt_tokens, 1)

    def saw(self, prefix: Sequence[BlockHash], prompt_tokens: int) -> None:
        """`prompt_tokens` 0: an answer ended, which leaves blocks but asks for none."""
        if prompt_tokens and self.is_counting:
            reusable = (prompt_tokens - 1) // self.block_size
            asked = prefix[:reusable]
            self.prompt_tokens += prompt_tokens
            self._unlimited_hits += self.block_size * _leading(asked, self._ever)
            self._pooled_hits += self.block_size * _leading(asked, self._pool)
        self._ever.update(prefix)
        pool = self._pool
        for block in reversed(prefix):
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > self.capacity:
            pool.popitem(last=False)


def _leading(
    prefix: Sequence[BlockHash], held: set[BlockHash] | OrderedDict[BlockHash, None]
) -> int:
    return next((i for i, block in enumerate(prefix) if block not in held), len(prefix))
