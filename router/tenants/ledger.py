"""What tenants have used in this minute, and how many of their requests run."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from router.tenants.tenant import Tenant

WINDOW_S: Final = 60
"""Budgets are per minute of the clock: all routers begin a new one at the same instant."""


class Refusal(StrEnum):
    """Which bound a request would have broken."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT = "concurrent"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants in. `tokens`: a guess, corrected when the reply says what it was."""

    tenant: Tenant
    tokens: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer, and the tenant's totals after it. `window`: minutes since 1970."""

    refusal: Refusal | None
    requests: int
    tokens: int
    in_flight: int
    window: int
    reset_s: float


class Ledger(Protocol):
    """Budgets of all tenants. Neither method fails: doubts are decided on the safe side."""

    async def take(self, ask: Ask) -> Taken:
        """Let it in and book it, or say which bound is reached; then nothing is booked."""

    def end(self, ask: Ask, window: int, tokens: int | None) -> None:
        """A request that was let in is over; `tokens`: what it really took, if that is known."""


def refusal(tenant: Tenant, requests: int, tokens: int, in_flight: int) -> Refusal | None:
    """Whether totals that include a new request break a bound."""
    if 0 < tenant.requests_per_minute < requests:
        return Refusal.REQUESTS
    if 0 < tenant.tokens_per_minute < tokens:
        return Refusal.TOKENS
    if 0 < tenant.concurrent_requests < in_flight:
        return Refusal.CONCURRENT
    return None


def charged(ask: Ask) -> int:
    """Tokens that are booked at first: a request of more than a minute's can never fit."""
    bound = ask.tenant.tokens_per_minute
    return min(ask.tokens, bound) if bound else ask.tokens


def correction(ask: Ask, window: int, tokens: int | None, now: int) -> int:
    """What to add to the minute `now`, once the real number of tokens is known.

    Too little was booked: that counts whenever it is known. Too much: only in its own minute.
    """
    if tokens is None:
        return 0
    extra = tokens - charged(ask)
    return extra if extra > 0 or window == now else 0
