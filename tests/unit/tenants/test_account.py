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


def test_places_that_others_held_when_redis_told_are_theirs_for_a_while():
    tenant = Tenant(id="a", concurrent_requests=6)
    account = Account("a", window=1000)
    account.hear_of_others(6, NOW)
    assert admitted(account, tenant, 9, routers=4) == 0
    account.hear_of_others(0, NOW)
    # a share of what was free then, however often it is asked
    assert admitted(account, tenant, 9, routers=4) == 1
    account.hear_of_others(5, NOW - 60.0)
    assert admitted(account, tenant, 9, routers=2) == 2


def test_of_the_last_few_each_router_gives_out_one_at_most():
    tenant = Tenant(id="a", requests_per_minute=2)
    account = Account("a", window=1000)
    assert admitted(account, tenant, 9, routers=4) == 1
    account.learn(1000, 1, 0, account.carry())
    assert admitted(account, tenant, 9, routers=4) == 0


def test_what_redis_booked_for_nobody_comes_back():
    tenant = Tenant(id="a", requests_per_minute=100)
    account = Account("a", window=1000)
    account.learn(1000, 100, 500, (1000, 0, 0))
    account.give_back(Ask(tenant, 5), 1000)
    assert account.carry() == (1000, -1, -5)
    assert admitted(account, tenant, 9, routers=4) == 1
    account.give_back(Ask(tenant, 5), 999)
    assert account.carry() == (1000, 0, -5)
