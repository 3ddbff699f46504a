"""One tenant's budget as one of several routers knows it."""

from dataclasses import dataclass
from typing import Final

from router.tenants.ledger import WINDOW_S, Ask, Refusal, Taken, charged, correction

FRESH_S: Final = 2.0
"""So long it matters how many requests of the others were in flight when Redis told last."""


@dataclass(slots=True)
class Account:
    """`requests` and `tokens` are the totals that Redis told last of this window;
    `untold_…` what this router used since without having told;
    `own_…` all that it let in.

    `in_flight`: its own requests. `is_told`: Redis knows their number. `others`: requests of the
    other routers in flight, told at `heard_at`, when it had `own_then` itself.
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
    own_then: int = 0
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
        """Requests that others have in flight, beside our own of now."""
        self.others, self.own_then, self.heard_at = in_flight, self.in_flight, now

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
        refused = self._beyond(ask, now, routers)
        requests = self.requests + self.untold_requests
        tokens = self.tokens + self.untold_tokens
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

    def _beyond(self, ask: Ask, now: float, routers: int) -> Refusal | None:
        """What one more request would be beyond, of our own share."""
        tenant = ask.tenant
        requests, tokens = self.requests + self.untold_requests, self.tokens + self.untold_tokens
        share = self._share(tenant.requests_per_minute, self.requests, routers)
        if tenant.requests_per_minute and requests + 1 > share:
            return Refusal.REQUESTS
        share = self._share(tenant.tokens_per_minute, self.tokens, routers)
        # a request of more than a whole share may still have it
        taken = min(charged(ask), max(1, share - self.tokens))
        if tenant.tokens_per_minute and tokens + taken > share:
            return Refusal.TOKENS
        if tenant.concurrent_requests:
            places = self._places(tenant.concurrent_requests, now, routers)
            return Refusal.CONCURRENT if self.in_flight + 1 > places else None
        return None

    def _places(self, bound: int, now: float, routers: int) -> int:
        """How many requests it may have in flight.

        Just after Redis told, others hold what it said. Later on nobody knows.
        """
        if now - self.heard_at > FRESH_S:
            return max(1, bound // routers)
        return self.own_then + max(0, bound - self.others - self.own_then) // routers

    def _share(self, bound: int, used: int, routers: int) -> int:
        """This router's bound, what all used before included.

        The last few, which are fewer than the routers, nobody gives out: but each gives at least
        one in a minute, if there was any left.
        """
        if used >= bound:
            return bound
        return used + max((bound - used) // routers, 0 if self.own_requests else 1)
