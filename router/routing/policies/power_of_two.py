"""The less loaded of two random replicas."""

from collections.abc import Sequence
from random import Random

from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery


class PowerOfTwo:
    """A random order, its first two sorted by requests in flight, then by queued tokens."""

    needs_prefix = False
    uses_history = False

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        ids = sorted(by_id)
        self._rng.shuffle(ids)
        first = sorted(ids[:2], key=lambda i: (by_id[i].in_flight, by_id[i].queued_tokens))
        return Decision((*first, *ids[2:]), Reason.LEAST_LOADED)
