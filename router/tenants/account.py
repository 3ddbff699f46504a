"""One tenant's budget as one of several routers knows it."""

from dataclasses import dataclass
from typing import Final

from router.tenants.ledger import WINDOW_S, Ask, Refusal, Taken, charged, correction, refusal
from router.tenants.tenant import Tenant

FRESH_S: Final = 2.0
"""So long it matters how many requests of the others were in flight when Redis told last."""


@dataclass(slots=True)
class Account:
    """`requests` and `tokens` are the totals that Redis told last of this window;
    `untold_…` what this router used since without having told;
    `own_…` all that it let in.

    `in_flight`: its own requests. `is_told`: Redis knows their number. `others`: requests of the
    other routers in flight, told at `heard_at`.
    """

    tenant_id: str
    window: int = 0
    requests: int = 0
    tokens: int = 0
    untold_requests: int = 0
    untold_tokens: int = 0
    own_requests: int = 0
    own_tokens: int = 0
    in_flight: int = 0
    is_told: bool = True
    others: int = 0
    heard_at: float = float("-inf")

    @property
    def has_news(self) -> bool:
        return not self.is_told or bool(self.untold_requests or self.untold_tokens)

    @property
    def is_busy(self) -> bool:
        return self.in_flight > 0

    def enter(self, window: int) -> None:
        """Another minute: what was used in the last is over."""
        if window > self.window:
            self.window = window
            self.requests = self.tokens = self.untold_requests = self.untold_tokens = 0
            self.own_requests = self.own_tokens = 0

    def floor(self) -> tuple[int, int, int]:
        return self.window, self.requests, self.tokens

    def carry(self) -> tuple[int, int, int]:
        return self.window, self.untold_requests, self.untold_tokens

    def learn(self, window: int, requests: int, tokens: int, carry: tuple[int, int, int]) -> None:
        """Redis' totals; `carry` is in them."""
        self.enter(window)
        if carry[0] == self.window:
            self.untold_requests -= carry[1]
            self.untold_tokens -= carry[2]
        if window == self.window:
            self.requests, self.tokens = requests, tokens

    def hear_of_others(self, in_flight: int, now: float) -> None:
        """Requests that others have in flight; where they are many, a late Redis gives nothing."""
        self.others, self.heard_at = in_flight, now

    def give_back(self, ask: Ask, window: int) -> None:
        """Redis has booked what nobody waited for any more. Whatever became of it was booked
        apart."""
        if window == self.window:
            self.untold_requests -= 1
            self.untold_tokens -= charged(ask)

    def own(self) -> tuple[int, int]:
        return self.own_requests, self.own_tokens

    def let_in(self, ask: Ask) -> None:
        """It runs, and counts."""
        self.in_flight += 1
        self.own_requests += 1
        self.own_tokens += charged(ask)

    def take_alone(self, ask: Ask, now: float, routers: int) -> Taken:
        """Decide without Redis: this router's share of what was left when it last heard."""
        tenant = ask.tenant
        share = Tenant(
            id=tenant.id,
            requests_per_minute=_share(tenant.requests_per_minute, self.requests, routers),
            tokens_per_minute=_share(tenant.tokens_per_minute, self.tokens, routers),
            concurrent_requests=self._at_once(tenant.concurrent_requests, now, routers),
        )
        requests = self.requests + self.untold_requests
        tokens = self.tokens + self.untold_tokens
        tokens_then = tokens + min(charged(ask), max(1, share.tokens_per_minute - self.tokens))
        refused = refusal(share, requests + 1, tokens_then, self.in_flight + 1)
        if refused is None and share.concurrent_requests < 0:
            refused = Refusal.CONCURRENT
        if refused is None:
            self.untold_requests += 1
            self.untold_tokens += charged(ask)
            self.let_in(ask)
            self.is_told = False
        reset_s = WINDOW_S - now % WINDOW_S
        return Taken(refused, requests + 1, tokens, self.in_flight, self.window, reset_s)

    def end(self, ask: Ask, window: int, tokens: int | None) -> None:
        self.in_flight -= 1
        extra = correction(ask, window, tokens, self.window)
        self.untold_tokens += extra
        self.own_tokens += extra
        self.is_told = False

    def _at_once(self, bound: int, now: float, routers: int) -> int:
        """This router's share of places; -1: none is free.

        Just after Redis told, others hold what it said. Later on nobody knows.
        """
        if not bound or now - self.heard_at > FRESH_S:
            return _share(bound, 0, routers)
        free = max(0, bound - self.others - self.in_flight)
        return self.in_flight + free // routers or -1


def _share(bound: int, used: int, routers: int) -> int:
    """A router's bound, what all used before included; at least one more, if there is any left."""
    if not bound or used >= bound:
        return bound
    return used + max(1, (bound - used) // routers)
