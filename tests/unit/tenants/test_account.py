"""A router that can't ask gives out its share of what was left, and tells of it later."""

from router.tenants import Ask, MemoryLedger, Refusal, Tenant
from router.tenants.account import Account

NOW = 60.0 * 1000


def admitted(account, tenant, count, routers, tokens=0):
    asks = [account.take_alone(Ask(tenant, tokens), NOW, routers) for _ in range(count)]
    return sum(one.refusal is None for one in asks)


def test_the_share_is_of_what_is_left():
    account = Account("a", window=1000)
    account.learn(1000, 20, 0, (1000, 0, 0))
    assert admitted(account, Tenant(id="a", requests_per_minute=100), 90, routers=4) == 20


def test_an_empty_budget_stays_empty():
    account = Account("a", window=1000)
    account.learn(1000, 100, 0, (1000, 0, 0))
    assert admitted(account, Tenant(id="a", requests_per_minute=100), 5, routers=4) == 0


def test_tokens_and_requests_at_once_are_shared_too():
    tokens = Tenant(id="a", tokens_per_minute=1000)
    assert admitted(Account("a", window=1000), tokens, 90, routers=4, tokens=50) == 5
    once = Tenant(id="a", concurrent_requests=8)
    assert admitted(Account("a", window=1000), once, 90, routers=4) == 2


def test_what_was_given_out_is_carried_once_and_only_in_its_minute():
    account = Account("a", window=1000)
    admitted(account, Tenant(id="a", requests_per_minute=100), 7, routers=1, tokens=3)
    carry = account.carry()
    assert carry == (1000, 7, 21)
    account.learn(1000, 50, 90, carry)
    assert (account.carry(), account.floor()) == ((1000, 0, 0), (1000, 50, 90))
    admitted(account, Tenant(id="a", requests_per_minute=100), 2, routers=1)
    account.enter(1001)
    assert account.carry() == (1001, 0, 0)


async def test_a_new_minute_begins_with_a_whole_budget():
    now = [0.0]
    ledger = MemoryLedger(lambda: now[0])
    ask = Ask(Tenant(id="a", requests_per_minute=1), 0)
    assert (await ledger.take(ask)).refusal is None
    now[0] = 59.9
    assert (await ledger.take(ask)).refusal is Refusal.REQUESTS
    now[0] = 60.0
    assert (await ledger.take(ask)).refusal is None
