"""Budgets of one router that shares them with nobody."""

from collections.abc import Callable
from dataclasses import dataclass, field

from router.tenants.ledger import WINDOW_S, Ask, Taken, charged, correction, refusal


@dataclass(slots=True)
class _Account:
    window: int = 0
    requests: int = 0
    tokens: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class MemoryLedger:
    """`wall_clock`: seconds since 1970."""

    wall_clock: Callable[[], float]
    _accounts: dict[str, _Account] = field(default_factory=dict)

    async def take(self, ask: Ask) -> Taken:
        now = self.wall_clock()
        account = self._current(ask.tenant.id, int(now // WINDOW_S))
        totals = (account.requests + 1, account.tokens + charged(ask), account.in_flight + 1)
        refused = refusal(ask.tenant, *totals)
        if refused is None:
            account.requests, account.tokens, account.in_flight = totals
        return Taken(
            refused,
            account.requests,
            account.tokens,
            account.in_flight,
            account.window,
            WINDOW_S - now % WINDOW_S,
        )

    def end(self, ask: Ask, window: int, tokens: int | None) -> None:
        account = self._current(ask.tenant.id, int(self.wall_clock() // WINDOW_S))
        account.in_flight -= 1
        account.tokens += correction(ask, window, tokens, account.window)

    def _current(self, tenant_id: str, window: int) -> _Account:
        account = self._accounts.setdefault(tenant_id, _Account())
        if account.window != window:
            account.window, account.requests, account.tokens = window, 0, 0
        return account
