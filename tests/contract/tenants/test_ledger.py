"""What every ledger of budgets does, in memory and in a real Redis."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from router.shared import RedisStore, connect
from router.tenants import Ask, MemoryLedger, RedisLedger, Refusal, Tenant
from tests.support.processes import until
from tests.support.redis_server import needs_redis, redis_server
from tests.support.tenants import away_from_the_minute, wall


@asynccontextmanager
async def memory():
    yield MemoryLedger(wall)


@asynccontextmanager
async def redis():
    async with redis_server() as server:
        store = RedisStore(connect(server.url, 2.0), "test", 2.0)
        ledger = RedisLedger("one", store, 2.0, lambda: 1, wall)
        task = asyncio.create_task(ledger.work())
        yield ledger
        task.cancel()
        await asyncio.wait([task])
        await store.aclose()


@pytest.fixture(params=[memory, pytest.param(redis, marks=needs_redis)])
async def ledger(request):
    await away_from_the_minute(10.0)
    async with request.param() as made:
        yield made


async def take(ledger, tenant, count, tokens=10):
    asks = [Ask(tenant, tokens) for _ in range(count)]
    taken = await asyncio.gather(*(ledger.take(ask) for ask in asks))
    return [one.refusal for one in taken], asks, taken


async def test_requests_of_a_minute_are_counted_exactly(ledger):
    tenant = Tenant(id="a", requests_per_minute=7)
    refusals, _, taken = await take(ledger, tenant, 20)
    assert refusals.count(None) == 7
    assert refusals[7:] == [Refusal.REQUESTS] * 13
    assert all(0 < one.reset_s <= 60 for one in taken)
    assert max(one.requests for one in taken) == 7


async def test_tokens_of_a_minute_are_bounded_by_what_was_guessed(ledger):
    tenant = Tenant(id="a", tokens_per_minute=100)
    refusals, _, _ = await take(ledger, tenant, 9, tokens=30)
    assert refusals == [None] * 3 + [Refusal.TOKENS] * 6


async def test_tokens_that_were_not_needed_come_back_and_more_are_charged(ledger):
    tenant = Tenant(id="a", tokens_per_minute=100)
    _, [ask], [taken] = await take(ledger, tenant, 1, tokens=90)
    ledger.end(ask, taken.window, 20)

    async def used(tokens):
        _, [ask], [taken] = await take(ledger, tenant, 1, tokens=0)
        ledger.end(ask, taken.window, None)
        return taken.tokens == tokens

    await until(lambda: used(20))
    _, [ask], [taken] = await take(ledger, tenant, 1, tokens=10)
    ledger.end(ask, taken.window, 65)
    await until(lambda: used(85))


async def test_a_request_of_more_than_a_minutes_tokens_can_still_be_sent(ledger):
    refusals, _, _ = await take(ledger, Tenant(id="a", tokens_per_minute=100), 2, tokens=5000)
    assert refusals == [None, Refusal.TOKENS]


async def test_requests_at_once_are_bounded_until_one_ends(ledger):
    tenant = Tenant(id="a", concurrent_requests=3)
    refusals, asks, taken = await take(ledger, tenant, 5)
    assert refusals == [None] * 3 + [Refusal.CONCURRENT] * 2
    ledger.end(asks[0], taken[0].window, None)

    async def is_let_in():
        return (await take(ledger, tenant, 1))[0] == [None]

    await until(is_let_in)
    assert not await is_let_in()


async def test_tenants_do_not_share_budgets(ledger):
    assert (await take(ledger, Tenant(id="a", requests_per_minute=1), 2))[0][1] is not None
    assert (await take(ledger, Tenant(id="b", requests_per_minute=1), 1))[0] == [None]
