"""The default: the replica that gives the fleet its first tokens soonest."""

from collections.abc import Mapping, Sequence

from router.replicas import ReplicaId
from router.routing.cost import predicted_ttft_ms, social_cost_ms
from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery
from router.routing.ring import Ring

EQUAL_WITHIN = 1.1
"""Replicas within 10 % of the cheapest are as good as it: less than predictions are worth."""


class CacheAware:
    """Lowest cost first; among equals, the home that consistent hashing gives the prompt.

    A prompt that nobody holds costs about the same everywhere, so the ring decides, until its home
    is busier than others: hashing with a bound on load. A prompt that is held costs much less
    where it is held, so the ring has no say.
    """

    needs_prefix = True

    def __init__(self) -> None:
        self._ring = Ring()

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        by_id = {c.replica_id: c for c in candidates}
        costs = {c.replica_id: social_cost_ms(query, c) for c in candidates}
        limit = EQUAL_WITHIN * min(costs.values())
        homes = self._ring.order(query.ring_key, by_id)
        equal = [replica_id for replica_id in homes if costs[replica_id] <= limit]
        dearer = sorted((i for i in homes if costs[i] > limit), key=costs.__getitem__)
        order = (*equal, *dearer)
        predicted = {c.replica_id: predicted_ttft_ms(query, c) for c in candidates}
        return Decision(order, _reason(query, by_id, order[0]), predicted)


def _reason(
    query: RouteQuery, candidates: Mapping[ReplicaId, Candidate], chosen_id: ReplicaId
) -> Reason:
    chosen = candidates[chosen_id]
    most = max(c.hit_tokens for c in candidates.values())
    if chosen.hit_tokens == 0 and most == 0:
        return Reason.COLD
    if chosen.hit_tokens < most and (most - chosen.hit_tokens) * 10 > query.prompt_tokens:
        return Reason.LOAD
    return Reason.EXPECTED if chosen.hit_tokens > chosen.matched_tokens else Reason.MATCH
