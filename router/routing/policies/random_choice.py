"""Any replica: the control that every other policy must beat."""

from collections.abc import Sequence
from random import Random

from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery


class RandomChoice:
    """A uniformly random order."""

    needs_prefix = False
    uses_history = False

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        ids = sorted(candidate.replica_id for candidate in candidates)
        self._rng.shuffle(ids)
        return Decision(tuple(ids), Reason.RANDOM)
