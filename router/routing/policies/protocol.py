"""What a policy is."""

from collections.abc import Sequence
from typing import Protocol

from router.routing.decision import Decision
from router.routing.query import Candidate, RouteQuery


class Policy(Protocol):
    """Orders candidates, first choice first, and says why. `candidates` is never empty.

    `needs_prefix`: whether it reads `hit_tokens`; if not, prompts aren't tokenized for it.
    `uses_history`: whether those shall come from what was routed before, not from events.
    """

    needs_prefix: bool
    uses_history: bool

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision: ...
