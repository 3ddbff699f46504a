"""Each in turn: what an ordinary load balancer does."""

from collections.abc import Sequence

from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery


class RoundRobin:
    """Replicas in order of their ids, starting one further each time."""

    needs_prefix = False
    uses_history = False

    def __init__(self) -> None:
        self._turn = 0

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        ids = sorted(candidate.replica_id for candidate in candidates)
        start = self._turn % len(ids)
        self._turn += 1
        return Decision((*ids[start:], *ids[:start]), Reason.ROUND_ROBIN)
