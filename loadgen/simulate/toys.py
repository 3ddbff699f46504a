"""Policies as simple as those that the regression anchors were computed with.

They live here and not in the router: nobody should serve with them. Each knows what candidates hold
and what it chose itself; ties go to who computed least of the last 200 prompts, then by id.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from router.routing import Candidate, Decision, Policy, Reason, RouteQuery

TOKENS_PER_S: Final = 15_000.0
"""What a replica computes."""
WINDOW: Final = 200
"""Prompts that `load` is of."""
MOST_BEYOND_SHARE: Final = 0.25
"""Longest match: a replica that computed more than 1 / n and this of the window takes no more."""


class _Toy:
    needs_prefix = True
    uses_history = False

    def __init__(self) -> None:
        self._load: dict[str, int] = {}
        self._recent: deque[tuple[str, int]] = deque()

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        chosen = self._choose(query, sorted(candidates, key=lambda c: c.replica_id))
        self._recent.append((chosen.replica_id, _uncached(query, chosen)))
        self._add(*self._recent[-1])
        if len(self._recent) > WINDOW:
            replica_id, tokens = self._recent.popleft()
            self._add(replica_id, -tokens)
        return Decision((chosen.replica_id,), Reason.LOAD)

    def _add(self, replica_id: str, tokens: int) -> None:
        self._load[replica_id] = self.load(replica_id) + tokens

    def load(self, replica_id: str) -> int:
        return self._load.get(replica_id, 0)

    def _choose(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Candidate:
        raise NotImplementedError


class Any(_Toy):
    """A replica by chance."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    def _choose(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Candidate:
        return self._rng.choice(candidates)


class InTurn(_Toy):
    """Each in turn."""

    _turn = -1

    def _choose(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Candidate:
        self._turn += 1
        return candidates[self._turn % len(candidates)]


class FirstBlock(_Toy):
    """By a hash of the session, which is the prompt's first block here."""

    def _choose(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[zlib.crc32(query.ring_key.encode()) % len(candidates)]


class LongestMatch(_Toy):
    """Most held; but who computed too large a share of late takes no more."""

    def _choose(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Candidate:
        best = min(candidates, key=lambda c: (-c.hit_tokens, self.load(c.replica_id)))
        share = self.load(best.replica_id) / (sum(self._load.values()) or 1)
        if share <= 1 / len(candidates) + MOST_BEYOND_SHARE:
            return best
        return min(candidates, key=lambda c: self.load(c.replica_id))


class LeastWork(_Toy):
    """The smallest sum of what waits there and what the prompt adds, in tokens."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._free_at: dict[str, float] = {}

    def _choose(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Candidate:
        now = self._clock()
        waits = {
            c.replica_id: max(0.0, self._free_at.get(c.replica_id, 0) - now) for c in candidates
        }

        def work(c: Candidate) -> float:
            return TOKENS_PER_S * waits[c.replica_id] + _uncached(query, c)

        best = min(candidates, key=lambda c: (work(c), self.load(c.replica_id)))
        self._free_at[best.replica_id] = now + work(best) / TOKENS_PER_S
        return best


def _uncached(query: RouteQuery, candidate: Candidate) -> int:
    return query.prompt_tokens - candidate.hit_tokens


TOYS: Final[Mapping[str, Callable[[Random, Callable[[], float]], Policy]]] = {
    "random": lambda rng, clock: Any(rng),
    "round robin": lambda rng, clock: InTurn(),
    "hash of first block": lambda rng, clock: FirstBlock(),
    "longest match": lambda rng, clock: LongestMatch(),
    "least work": lambda rng, clock: LeastWork(clock),
}
"""Each is given the run's time."""
