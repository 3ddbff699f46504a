"""Uncached tokens times batch size: a score without parameters (arXiv 2603.15202)."""

from collections.abc import Sequence

from router.routing.cost import uncached_tokens
from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery
from router.routing.ring import Ring


class LMetric:
    """The smallest product of tokens to compute (queued and own) and requests in flight first."""

    needs_prefix = True
    uses_history = False

    def __init__(self) -> None:
        self._ring = Ring()

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        homes = self._ring.order(query.ring_key, by_id)
        homes.sort(key=lambda i: _score(query, by_id[i]))
        is_held = by_id[homes[0]].hit_tokens > 0
        return Decision(tuple(homes), Reason.MATCH if is_held else Reason.COLD)


def _score(query: RouteQuery, candidate: Candidate) -> int:
    tokens = candidate.queued_tokens + uncached_tokens(query, candidate)
    return tokens * (candidate.in_flight + 1)
