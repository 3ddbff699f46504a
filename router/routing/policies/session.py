"""Sticky: a session's requests go where consistent hashing puts it, whatever the load."""

from collections.abc import Sequence

from router.routing.decision import Decision, Reason
from router.routing.query import Candidate, RouteQuery
from router.routing.ring import Ring


class Session:
    """The ring's order over the session, or over the prompt's beginning when it has none."""

    needs_prefix = True
    uses_history = False

    def __init__(self) -> None:
        self._ring = Ring()

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        ids = [candidate.replica_id for candidate in candidates]
        order = self._ring.order(query.ring_key, ids, query.moved_to)
        return Decision(tuple(order), Reason.SESSION)
