"""Budgets that several routers share in Redis, and what one of them does while it can't ask.

All asks of an instant go in one script over one connection. While Redis fails nobody waits for it:
each router gives out its share of what was left when it last heard.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from router.shared.protocol import StoreFailed
from router.tenants.account import Account
from router.tenants.ledger import WINDOW_S, Ask, Refusal, Taken, charged
from router.tenants.script import BUDGETS

FLUSH_S: Final = 0.02
"""Ends of requests are told so late at most."""
RETRY_S: Final = 0.25
GRACE_S: Final = 0.005
"""What has come in time and waits to be read counts, where our own loop was late."""
LEASE_S: Final = 30.0
"""A router that died has no requests in flight any more after so long."""
KEEP_S: Final = 5.0
"""A router that isn't heard of any more counts among the routers for so long: Redis may have lost
it, and it may have requests in flight."""
SETTLE_S: Final = 1.0
"""So long nothing is let in by a Redis that is empty, unless all routers have told it before what
they have let in."""
AGAIN: Final = 4
"""What a script answers that can't know yet."""
_REFUSALS: Final = (None, Refusal.REQUESTS, Refusal.TOKENS, Refusal.CONCURRENT)


class Scripts(Protocol):
    """What is needed of `router.shared.RedisStore`."""

    def key(self, *parts: str) -> str:
        """A key of ours."""

    async def run(self, script: str, keys: list[str], *values: Any) -> Any:
        """A script's answer, or StoreFailed."""


@dataclass(slots=True, eq=False)
class _Asked:
    ask: Ask
    answer: asyncio.Future[Taken | None]
    """None: it didn't come in time."""
    is_heard: bool = False
    """Redis knows of it, and has to learn more first."""


@dataclass(slots=True)
class RedisLedger:
    """`routers`: how many share the budgets. `work` must run; `wall_clock`: seconds since 1970.

    `wipes`: how often Redis was found empty.

    `deadline_s`: longest wait of a request. `scripts` should be more patient: what Redis books too
    late is given back, if it says so.
    """

    router_id: str
    scripts: Scripts
    deadline_s: float
    routers: Callable[[], int]
    wall_clock: Callable[[], float]
    wipes: Callable[[], int] = lambda: 0
    is_failing: bool = False
    _accounts: dict[str, Account] = field(default_factory=dict)
    _asked: list[_Asked] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _most: int = 1
    """Routers of late."""
    _most_until: float = 0.0
    _wipes_told: int = 0
    _must_come_by: bool = True
    """Redis may not know of us."""
    _since: int = 0
    """Since when Redis has known anything, as told last: later, if it lost all meanwhile."""
    _ahead_s: float = 0.0
    _told_at: float = 0.0

    async def take(self, ask: Ask) -> Taken:
        if not self.is_failing:
            loop = asyncio.get_running_loop()
            asked = _Asked(ask, loop.create_future())
            self._asked.append(asked)
            self._wake.set()
            timer = loop.call_later(self.deadline_s, loop.call_later, GRACE_S, self._give_up, asked)
            try:
                if (taken := await asked.answer) is not None:
                    return taken
            except StoreFailed:
                pass
            except asyncio.CancelledError:
                if (taken := _answer(asked)) is not None and taken.refusal is None:
                    self.end(ask, taken.window, 0)
                raise
            finally:
                timer.cancel()
        return self._account(ask).take_alone(ask, self._now(), self._most)

    def end(self, ask: Ask, window: int, tokens: int | None) -> None:
        self._account(ask).end(ask, window, tokens)

    async def work(self) -> None:
        """Carry asks and ends to Redis until cancelled."""
        while True:
            try:
                async with asyncio.timeout(FLUSH_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            asked, self._asked = self._asked, []
            asked = [one for one in asked if not one.answer.done()]
            if self.wipes() != self._wipes_told:
                self._tell_all_again()
            if asked or self._has_news():
                await self._send(asked)

    async def _send(self, asked: Sequence[_Asked]) -> None:
        wipes = self.wipes()
        try:
            await self._exchange(asked)
        except StoreFailed as exc:
            self.is_failing = True
            # it may come back empty, and knowing nobody
            self._tell_all_again()
            self._most_until = self.wall_clock() + KEEP_S
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(exc)
            await asyncio.sleep(RETRY_S)
        else:
            self.is_failing = False
            self._count_routers()
            self._told_at = self.wall_clock()
            self._wipes_told = wipes

    async def _exchange(self, asked: Sequence[_Asked]) -> None:
        rows = self._rows(asked)
        # without any: Redis has failed, or was empty; say that we are here, with nothing in flight
        keys = [self.scripts.key("budgets")]
        values: list[int] = []
        carried: list[tuple[Account, tuple[int, int, int]]] = []
        for account, one in rows:
            keys.append(self.scripts.key("tenant", account.tenant_id))
            is_first = all(account is not before for before, _ in carried)
            carry = account.carry() if is_first else (0, 0, 0)
            carried.append((account, carry))
            values += [*_asks(one), account.in_flight, *account.floor(), *carry, *account.own()]
            if is_first:
                account.is_told = True
        routers = max(self._most, self.routers())
        head = self.router_id, round(LEASE_S * 1e3), routers, round(SETTLE_S * 1e3), self._since
        try:
            since, *answers = await self.scripts.run(BUDGETS, keys, *head, *values)
        except StoreFailed:
            for account, _ in carried:
                account.is_told = False
            raise
        for (account, one), (_, carry), answer in zip(rows, carried, answers, strict=True):
            self._learn(account, one, carry, answer)
        self._must_come_by = since != self._since
        if self._must_come_by:
            self._since = since
            self._tell_all_again()
            self._wake.set()

    def _rows(self, asked: Sequence[_Asked]) -> list[tuple[Account, _Asked | None]]:
        """What is asked, and what there is to tell beside."""
        rows: list[tuple[Account, _Asked | None]] = []
        rows += [(self._account(one.ask), one) for one in asked]
        taken = {account.tenant_id for account, _ in rows}
        is_due = self._is_lease_due()
        rows += [
            (account, None)
            for account in self._accounts.values()
            if account.tenant_id not in taken and (account.has_news or (is_due and account.is_busy))
        ]
        return rows

    def _learn(
        self, account: Account, one: _Asked | None, carry: tuple[int, int, int], answer: list[int]
    ) -> None:
        code, requests, tokens, in_flight, window, reset_ms = answer
        self._ahead_s = (window + 1) * WINDOW_S - reset_ms / 1e3 - self.wall_clock()
        account.learn(window, requests, tokens, carry)
        if code == AGAIN and one is not None:
            one.is_heard = True
            self._asked.append(one)
            return
        refused = _REFUSALS[code]
        own = account.in_flight + (one is not None and refused is None)
        account.hear_of_others(max(0, in_flight - own), self._now())
        if one is None:
            return
        if one.answer.done():
            # nobody waits for it any more: it was decided without Redis, or its client left
            if refused is None:
                account.give_back(one.ask, window)
                account.is_told = False
            return
        if refused is None:
            account.let_in(one.ask)
        reset_s = reset_ms / 1e3
        one.answer.set_result(Taken(refused, requests, tokens, in_flight, window, reset_s))

    def _give_up(self, asked: _Asked) -> None:
        """It decides alone, and so do others until Redis has answered."""
        if asked.answer.done():
            return
        if asked.is_heard:
            # Redis answers, and will know before long; or it fails, and who asks is told
            asked.is_heard = False
            asyncio.get_running_loop().call_later(SETTLE_S, self._give_up, asked)
            return
        self.is_failing = True
        asked.answer.set_result(None)

    def _tell_all_again(self) -> None:
        self._must_come_by = True
        for account in self._accounts.values():
            account.is_told &= not (account.in_flight or account.own_requests)

    def _count_routers(self) -> None:
        """Those of late: after a loss Redis knows of them one by one."""
        known, now = max(1, self.routers()), self.wall_clock()
        if known >= self._most or now > self._most_until:
            self._most, self._most_until = known, now + KEEP_S

    def _has_news(self) -> bool:
        if self.is_failing or self._must_come_by or self._is_lease_due():
            return True
        return any(account.has_news for account in self._accounts.values())

    def _is_lease_due(self) -> bool:
        is_old = self.wall_clock() - self._told_at > LEASE_S / 3
        return is_old and any(account.is_busy for account in self._accounts.values())

    def _account(self, ask: Ask) -> Account:
        account = self._accounts.get(ask.tenant.id)
        if account is None:
            account = self._accounts[ask.tenant.id] = Account(ask.tenant.id)
        account.enter(int(self._now() // WINDOW_S))
        return account

    def _now(self) -> float:
        """By Redis' clock, as far as it is known."""
        return self.wall_clock() + self._ahead_s


def _answer(asked: _Asked) -> Taken | None:
    """What Redis said of it, if it has."""
    answer = asked.answer
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return None
    return answer.result()


def _asks(one: _Asked | None) -> tuple[int, int, int, int, int]:
    if one is None:
        return (0, 0, 0, 0, 0)
    tenant = one.ask.tenant
    bounds = (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrent_requests)
    return (1, charged(one.ask), *bounds)
