"""Longest match, whatever it costs, unless its holder is loaded too far beyond the others."""

from collections.abc import Sequence

from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery
from router.routing.ring import Ring

LOAD_BOUND = 1.25
"""A replica with more requests in flight than so many times the mean (and one) takes no more."""


class Prefix:
    """Most of the prompt held first; of equals, by the ring. Those above the bound come last."""

    needs_prefix = True
    uses_history = False

    def __init__(self) -> None:
        self._ring = Ring()

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        bound = LOAD_BOUND * sum(c.in_flight for c in candidates) / len(candidates) + 1
        homes = self._ring.order(query.ring_key, by_id)
        homes.sort(key=lambda i: (by_id[i].in_flight > bound, -by_id[i].hit_tokens))
        is_held = by_id[homes[0]].hit_tokens > 0
        return Decision(tuple(homes), Reason.MATCH if is_held else Reason.COLD)
