"""The default: the replica that gives the fleet its first tokens soonest."""

import math
from collections.abc import Collection, Sequence

from router.replicas import ReplicaId
from router.routing.cost import SHARE_BOUND, Surroundings, cost_parts_ms
from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery
from router.routing.ring import Ring

EQUAL_WITHIN = 1.02
"""Replicas within 2 % of the lowest cost are as good as it: predictions are no better."""
UNSEEN = 2.0
"""And those within so many times the work that other routers send to each, in the mean, before that
is heard of: the lowest is the lowest for all routers, and its queue is what they send there."""
EQUAL_HIT_SHARE = 0.1
"""Of two replicas one holds more if the difference is over a tenth of the prompt."""

CROWD_BOUND = 1.1
"""The same for requests in flight: what they hold of the cache, others can't."""

IDLE = 0.01
"""A fleet that computes for less of its time is idle: who did the little that there was is as good
as the others, and what overflowed from a home goes there again."""


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
        around = Surroundings.of(candidates)
        predicted, costs, lowest = {}, [], math.inf
        for c in candidates:
            ttft_ms, others_ms = cost_parts_ms(query, c, around)
            predicted[c.replica_id] = ttft_ms
            costs.append((cost := ttft_ms + others_ms, c.replica_id))
            if cost < lowest:
                lowest = cost
        limit = EQUAL_WITHIN * lowest + UNSEEN * around.busy * query.unseen_s * 1e3
        equal = [replica_id for cost, replica_id in costs if cost <= limit]
        if len(equal) > 1:
            crowds = _crowds(candidates, equal, around)
            equal = self._ring.order(query.ring_key, equal, query.moved_to)
            equal.sort(key=crowds.__getitem__)
        order = tuple(equal)
        if len(order) < len(costs):
            dearer = sorted([each for each in costs if each[0] > limit])
            order += tuple([replica_id for _, replica_id in dearer])
        return Decision(order, _reason(query, candidates, order[0], around), predicted)


def _crowds(
    candidates: Sequence[Candidate], wanted: Collection[ReplicaId], around: Surroundings
) -> dict[ReplicaId, float]:
    """By how much each has got more than its share of something: above 1, else 1."""
    busy = SHARE_BOUND * max(IDLE, around.busy)
    in_flight = CROWD_BOUND * around.in_flight + 1
    crowds = {}
    for c in candidates:
        if c.replica_id in wanted:
            most, there = c.busy / busy, c.in_flight / in_flight
            if there > most:
                most = there
            crowds[c.replica_id] = most if most > 1.0 else 1.0
    return crowds


def _reason(
    query: RouteQuery, candidates: Sequence[Candidate], chosen_id: ReplicaId, around: Surroundings
) -> Reason:
    most = around.most_hit_tokens
    if most == 0:
        return Reason.COLD
    chosen = candidates[0]
    for c in candidates:
        if c.replica_id == chosen_id:
            chosen = c
    if most - chosen.hit_tokens > EQUAL_HIT_SHARE * query.prompt_tokens:
        return Reason.LOAD
    return Reason.EXPECTED if chosen.expected_tokens > 0 else Reason.MATCH
