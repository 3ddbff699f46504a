"""Lets requests in: who is it, may it, is there budget left?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from router.errors import Forbidden, RateLimited, Unauthenticated
from router.openai.generation import Generation
from router.tenants.keys import KeyFile
from router.tenants.ledger import Ask, Ledger, Refusal, Taken, charged
from router.tenants.tenant import Tenant

ANYBODY: Final = Tenant(id="anybody")
BYTES_PER_TOKEN: Final = 4
"""A body's tokens are guessed before it is tokenized, and corrected by the reply's usage."""
FULL_RETRY_S: Final = 1.0

_WORDS: Final = {
    Refusal.REQUESTS: "requests in this minute",
    Refusal.TOKENS: "tokens in this minute",
    Refusal.CONCURRENT: "requests at once",
}


class Visit:
    """A request that was let in: a `with` block. This one is of a router without keys."""

    headers: Mapping[str, str] = {}
    """What the reply says of the tenant's budget."""

    def on(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """A reply's further headers, with ours."""
        return {**headers, **self.headers} if self.headers else headers

    def spent(self, tokens: int) -> None:
        """The reply's usage came."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """It is over."""


class Gate(Protocol):
    """Chosen once: with keys, or open."""

    def authenticate(self, headers: Mapping[str, str]) -> Tenant:
        """Unauthenticated, Forbidden."""

    async def admit(self, tenant: Tenant, generation: Generation) -> Visit:
        """Forbidden, RateLimited."""


class OpenGate:
    """Without keys everybody may everything."""

    _visit = Visit()

    def authenticate(self, headers: Mapping[str, str]) -> Tenant:
        return ANYBODY

    async def admit(self, tenant: Tenant, generation: Generation) -> Visit:
        return self._visit


@dataclass(slots=True)
class KeyedGate:
    """`on_refusal`: gets the tenant's id and the bound that it met. `on_use`: the tenant's id, a
    budget, its bound per minute, and what a request took of it."""

    keys: KeyFile
    ledger: Ledger
    default_output_tokens: int
    on_refusal: Callable[[str, str], None] = lambda tenant_id, reason: None
    on_use: Callable[[str, str, int, int], None] = lambda tenant_id, budget, bound, used: None

    def authenticate(self, headers: Mapping[str, str]) -> Tenant:
        key = _key_of(headers)
        if not key:
            raise Unauthenticated("No API key. Send it as: Authorization: Bearer KEY")
        tenant = self.keys.ring.find(key)
        if tenant is None:
            raise Unauthenticated("This API key is not known here.")
        if tenant.disabled:
            raise Forbidden("This API key's tenant is disabled.")
        return tenant

    async def admit(self, tenant: Tenant, generation: Generation) -> Visit:
        if not tenant.may_ask(generation.model):
            raise Forbidden(f"This API key may not use the model {generation.model!r}.")
        if not tenant.is_bounded:
            return OpenGate._visit
        ask = Ask(tenant, self._guess(generation))
        taken = await self.ledger.take(ask)
        headers = budget_headers(tenant, taken)
        if taken.refusal is None:
            return _Booked(self, ask, taken.window, headers)
        self.on_refusal(tenant.id, taken.refusal)
        is_full = taken.refusal is Refusal.CONCURRENT
        wait_s = FULL_RETRY_S if is_full else taken.reset_s
        raise RateLimited(
            f"Tenant {tenant.id} has had all its {_WORDS[taken.refusal]}. "
            f"Try again in {wait_s:.0f} s.",
            retry_after_s=wait_s,
            headers=headers,
        )

    def end(self, ask: Ask, window: int, tokens: int | None) -> None:
        """A request that was let in is over."""
        self.ledger.end(ask, window, tokens)
        tenant = ask.tenant
        for budget, bound, used in (
            ("requests", tenant.requests_per_minute, 1),
            ("tokens", tenant.tokens_per_minute, charged(ask) if tokens is None else tokens),
        ):
            if bound:
                self.on_use(tenant.id, budget, bound, used)

    def _guess(self, generation: Generation) -> int:
        output = generation.fields.max_output_tokens()
        wanted = self.default_output_tokens if output is None else max(0, output)
        return len(generation.body) // BYTES_PER_TOKEN + wanted


class _Booked(Visit):
    """Its place and its tokens are booked until the block ends."""

    def __init__(self, gate: KeyedGate, ask: Ask, window: int, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._gate = gate
        self._ask = ask
        self._window = window
        self._tokens: int | None = None

    def spent(self, tokens: int) -> None:
        self._tokens = tokens

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gate.end(self._ask, self._window, self._tokens)


def budget_headers(tenant: Tenant, taken: Taken) -> dict[str, str]:
    """`x-ratelimit-*` as OpenAI's clients know them, for the bounds that the tenant has."""
    headers: dict[str, str] = {}
    reset = f"{taken.reset_s:.0f}s"
    for kind, bound, used in (
        ("requests", tenant.requests_per_minute, taken.requests),
        ("tokens", tenant.tokens_per_minute, taken.tokens),
    ):
        if bound:
            headers[f"x-ratelimit-limit-{kind}"] = str(bound)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, bound - used))
            headers[f"x-ratelimit-reset-{kind}"] = reset
    return headers


def _key_of(headers: Mapping[str, str]) -> str:
    """The key as OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
