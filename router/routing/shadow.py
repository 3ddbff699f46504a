"""What other policies would have done with the same requests, at the same moments."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from router.replicas import ReplicaId
from router.routing.choosing import Choice, Chooser
from router.routing.cost import predicted_ttft_ms
from router.routing.history import History
from router.routing.policies import Policy

BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 13, 30, 60)
RECENT: Final = 1000
"""Predicted TTFTs that are kept for percentiles."""


@dataclass(slots=True)
class Tally:
    """What one policy would have done, by prediction. `same`: as the policy that acts did."""

    policy: str
    requests: int = 0
    same: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    ttft_sum_ms: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """Requests by predicted TTFT, up to each of `BUCKETS_S` and beyond."""
    recent_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def note(self, choice: Choice, replica_id: ReplicaId) -> None:
        """It would have sent this prompt there. Judged by what the policy that acts could see."""
        candidate = choice.candidates[replica_id]
        ttft_ms = predicted_ttft_ms(choice.query, candidate)
        self.requests += 1
        self.same += replica_id == choice.decision.replicas[0]
        self.prompt_tokens += choice.query.prompt_tokens
        self.hit_tokens += candidate.hit_tokens
        self.ttft_sum_ms += ttft_ms
        self.buckets[bisect_left(BUCKETS_S, ttft_ms / 1e3)] += 1
        self.recent_ms.append(ttft_ms)


class NoShadows:
    """Nobody asks what another policy would have done."""

    needs_prefix = False
    tallies: Sequence[Tally] = ()

    def observe(self, choice: Choice) -> None:
        """Nothing to compare with."""

    def forget(self, replica_id: ReplicaId) -> None:
        """Nothing was kept."""


@dataclass(slots=True)
class Shadow:
    """A policy that does not act. Its turns, chance and history are its own."""

    chooser: Chooser
    tally: Tally

    def would_take(self, choice: Choice, acting: Policy) -> ReplicaId:
        """Its first choice for the same ask, before the acting one is booked."""
        policy = self.chooser.policy
        if policy.uses_history and not acting.uses_history:
            contenders = list(choice.contenders.values())
            return self.chooser.consider(choice.ask, contenders).decision.replicas[0]
        return self.chooser.rank(choice.query, list(choice.candidates.values())).replicas[0]


@dataclass(slots=True)
class Shadows:
    """Compares; books nothing, and tells nobody's policy, loads or speeds anything."""

    acting: Policy
    acted: Tally
    shadows: Sequence[Shadow]

    @classmethod
    def of(cls, chooser: Chooser, acting: str, others: Mapping[str, Policy]) -> Shadows:
        """`chooser`: the one that acts, by the policy named `acting`."""
        return cls(
            chooser.policy,
            Tally(acting),
            [
                Shadow(replace(chooser, policy=policy, history=History()), Tally(name))
                for name, policy in others.items()
            ],
        )

    @property
    def needs_prefix(self) -> bool:
        """Whether prompts must be tokenized for one of them."""
        return any(shadow.chooser.policy.needs_prefix for shadow in self.shadows)

    @property
    def tallies(self) -> Sequence[Tally]:
        """The acting policy's first."""
        return [self.acted, *(shadow.tally for shadow in self.shadows)]

    def observe(self, choice: Choice) -> None:
        """This was chosen, and is not booked yet."""
        first = choice.decision.replicas[0]
        self.acted.note(choice, first)
        for shadow in self.shadows:
            shadow.tally.note(choice, shadow.would_take(choice, self.acting))
            if shadow.chooser.policy.uses_history:
                prefix = choice.contenders[first].prefix
                shadow.chooser.history.routed(first, prefix.hashes)

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left."""
        for shadow in self.shadows:
            shadow.chooser.history.forget(replica_id)
