"""Fewest requests in flight, then fewest prompt tokens queued."""

from collections.abc import Sequence

from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery
from router.routing.ring import Ring


class LeastLoaded:
    """Ties go by the ring, so that idle replicas share the work."""

    needs_prefix = False
    uses_history = False

    def __init__(self) -> None:
        self._ring = Ring()

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        homes = self._ring.order(query.ring_key, by_id)
        homes.sort(key=lambda i: (by_id[i].in_flight, by_id[i].queued_tokens))
        return Decision(tuple(homes), Reason.LEAST_LOADED)
