"""The default: the replica that gives the fleet its first tokens soonest."""

from collections.abc import Mapping, Sequence

from router.replicas import ReplicaId
from router.routing.cost import SHARE_BOUND, Surroundings, others_ms, predicted_ttft_ms
from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery
from router.routing.ring import Ring

EQUAL_WITHIN = 1.02
"""Replicas within 2 % of the lowest cost are as good as it: predictions are no better."""
EQUAL_HIT_SHARE = 0.1
"""Of two replicas one holds more if the difference is over a tenth of the prompt."""

CROWD_BOUND = 1.1
"""The same for requests in flight: what they hold of the cache, others can't."""


class CacheAware:
    """Lowest cost first; among equals, the home that consistent hashing gives the prompt.

    A prompt that nobody holds costs about the same everywhere, so the ring decides, but passes by
    homes that got more than their share of late: consistent hashing with bounded load. A prompt
    that is held costs much less where it is held, so the ring has no say.
    """

    needs_prefix = True
    uses_history: bool = False

    def __init__(self) -> None:
        self._ring = Ring()

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        by_id = {c.replica_id: c for c in candidates}
        around = Surroundings.of(candidates)
        predicted = {c.replica_id: predicted_ttft_ms(query, c) for c in candidates}
        costs = {
            c.replica_id: predicted[c.replica_id] + others_ms(query, c, around) for c in candidates
        }
        limit = EQUAL_WITHIN * min(costs.values())
        homes = self._ring.order(query.ring_key, by_id)
        equal = [replica_id for replica_id in homes if costs[replica_id] <= limit]
        dearer = sorted((i for i in homes if costs[i] > limit), key=costs.__getitem__)
        if len(equal) > 1:
            crowds = _crowds(candidates)
            equal.sort(key=lambda i: max(crowds[i], 1.0))
        order = (*equal, *dearer)
        return Decision(order, _reason(query, by_id, order[0]), predicted)


def _crowds(candidates: Sequence[Candidate]) -> dict[ReplicaId, float]:
    """How far each replica's share is used up: above 1, it has more than it should of something."""
    busy = sum(c.busy for c in candidates) / len(candidates)
    in_flight = sum(c.in_flight for c in candidates) / len(candidates)
    return {
        c.replica_id: max(
            c.busy / (SHARE_BOUND * busy) if busy else 0.0,
            c.in_flight / (CROWD_BOUND * in_flight + 1),
        )
        for c in candidates
    }


def _reason(
    query: RouteQuery, candidates: Mapping[ReplicaId, Candidate], chosen_id: ReplicaId
) -> Reason:
    chosen = candidates[chosen_id]
    most = max(c.hit_tokens for c in candidates.values())
    if chosen.hit_tokens == 0 and most == 0:
        return Reason.COLD
    if most - chosen.hit_tokens > EQUAL_HIT_SHARE * query.prompt_tokens:
        return Reason.LOAD
    return Reason.EXPECTED if chosen.expected_tokens > 0 else Reason.MATCH
