"""What is known of prompts before choosing: an index of this process, or another one's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

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


class Answer(Struct, frozen=True):
    """About one prompt: leading blocks by replica, and what slower tiers add to them."""

    matches: Mapping[ReplicaId, int]
    loads: Loads = {}


NOTHING: Final = Answer({})


class Answers(Struct, frozen=True):
    """By the last hash of each prompt, which names the whole of it.

    `failure`: why there is none, though an index was asked.
    """

    by_end: Mapping[BlockHash, Answer] = {}
    failure: str = ""

    def match(self, prefix: Sequence[BlockHash]) -> Mapping[ReplicaId, int]:
        """See `Known`."""
        return self.by_end.get(prefix[-1], NOTHING).matches

    def beyond(self, prefix: Sequence[BlockHash], matched: Mapping[ReplicaId, int]) -> Loads:
        """See `Known`."""
        return self.by_end.get(prefix[-1], NOTHING).loads


NO_ANSWERS: Final = Answers()
