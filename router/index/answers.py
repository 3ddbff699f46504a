"""What is known of prompts before choosing: an index of this process, or another one's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.blocks import BlockHash
from router.index.tiers import Loads
from router.replicas.replica import ReplicaId


class Matcher(Protocol):
    """Who holds how much of a prompt's beginning. Nothing here waits."""

    def match(self, prefix: Sequence[BlockHash]) -> Mapping[ReplicaId, int]:
        """See `PrefixIndex.match`."""
        ...


class Known(Matcher, Protocol):
    """And what loading more of it takes."""

    def beyond(self, prefix: Sequence[BlockHash], matched: Mapping[ReplicaId, int]) -> Loads:
        """See `TieredIndex.beyond`."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """About one prompt: leading blocks by replica, and what slower tiers add to them."""

    matches: Mapping[ReplicaId, int]
    loads: Loads = field(default_factory=dict[ReplicaId, tuple[()]])


NOTHING: Final = Answer({})


@dataclass(frozen=True, slots=True)
class Answers:
    """By the last hash of each prompt, which names the whole of it.

    `failure`: why there is none, though an index was asked.
    """

    by_end: Mapping[BlockHash, Answer] = field(default_factory=dict)
    failure: str = ""

    def match(self, prefix: Sequence[BlockHash]) -> Mapping[ReplicaId, int]:
        """See `Known`."""
        return self.by_end.get(prefix[-1], NOTHING).matches

    def beyond(self, prefix: Sequence[BlockHash], matched: Mapping[ReplicaId, int]) -> Loads:
        """See `Known`."""
        return self.by_end.get(prefix[-1], NOTHING).loads


NO_ANSWERS: Final = Answers()
