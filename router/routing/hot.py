"""Beginnings that many prompts share: what a new replica should compute before it is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.blocks import BlockHash
from router.blocks.hashing import BYTES_PER_TOKEN
from router.routing.choosing import Choice

MOST_BEGINNINGS: Final = 64
HALF_LIFE_S: Final = 120.0


@dataclass(slots=True)
class Beginning:
    """`model` and `salt`: its blocks are nobody else's. `tokens`: ids in native order. `uses`:
    prompts that began so, halved every 2 minutes."""

    model: str
    salt: str | None
    tokens: bytes
    hashes: Sequence[BlockHash]
    uses: float
    at: float

    @property
    def length(self) -> int:
        """In tokens."""
        return len(self.tokens) // BYTES_PER_TOKEN

    def begins_with(self, other: Beginning) -> bool:
        """Whether whoever computes this one computes the other too."""
        depth = len(other.hashes)
        return len(self.hashes) >= depth and self.hashes[depth - 1] == other.hashes[-1]

    def faded(self, now: float) -> float:
        return self.uses * math.exp2((self.at - now) / HALF_LIFE_S)

    def worth(self, now: float) -> float:
        """Tokens per half-life that need not be computed where it is held."""
        return max(0.0, self.faded(now) - 1.0) * self.length


class NothingHot:
    """Nobody wants to know."""

    def note(self, model: str, salt: str | None, tokens: bytes, choice: Choice) -> None:
        """Not remembered."""

    def hottest(self, models: Collection[str]) -> list[Beginning]:
        return []


@dataclass(slots=True)
class HotBeginnings:
    """Where a prompt reuses what another one computed, both share a beginning: those are counted.

    The least worth makes room, so that conversations, each of which is its own, push out each other
    and not what they have in common. Memory: 64 times `max_tokens` at the most.
    """

    clock: Callable[[], float]
    max_tokens: int
    """Of all together that `hottest` names."""
    _known: dict[BlockHash, Beginning] = field(default_factory=dict)

    def note(self, model: str, salt: str | None, tokens: bytes, choice: Choice) -> None:
        """A prompt came, of whose beginning something may be held somewhere. O(64)."""
        prefix = choice.contenders[choice.decision.replicas[0]].prefix
        now, blocks, hashes = self.clock(), prefix.blocks, prefix.hashes
        if not blocks:
            return
        for tip, beginning in self._known.items():
            depth = len(beginning.hashes)
            if depth <= blocks and hashes[depth - 1] == tip:
                beginning.uses, beginning.at = beginning.faded(now) + 1.0, now
        reused = max(c.hit_tokens for c in choice.candidates.values())
        depth = min(reused // prefix.block_size, blocks)
        length = depth * prefix.block_size
        if not depth or hashes[depth - 1] in self._known or length > self.max_tokens:
            return
        if len(self._known) >= MOST_BEGINNINGS:
            least = min(self._known, key=lambda i: (self._known[i].worth(now), self._known[i].at))
            del self._known[least]
        self._known[hashes[depth - 1]] = Beginning(
            model, salt, tokens[: length * BYTES_PER_TOKEN], hashes[:depth], 1.0, now
        )

    def hottest(self, models: Collection[str]) -> list[Beginning]:
        """Those worth most, up to `max_tokens` together; none that another of them begins with."""
        now = self.clock()
        chosen: list[Beginning] = []
        for one in sorted(self._known.values(), key=lambda b: b.worth(now), reverse=True):
            if one.worth(now) <= 0.0 or one.model not in models:
                continue
            if any(other.begins_with(one) for other in chosen):
                continue
            others = [other for other in chosen if not one.begins_with(other)]
            if sum(other.length for other in others) + one.length <= self.max_tokens:
                chosen = [*others, one]
        return chosen
