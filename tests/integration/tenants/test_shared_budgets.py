"""Budgets of four routers in a real Redis: exact; and when it fails, on the safe side."""

import asyncio
from contextlib import asynccontextmanager

from router.shared import RedisStore, connect
from router.tenants import Ask, RedisLedger, Refusal, Tenant
from router.tenants.redis_ledger import SETTLE_S
from tests.support.processes import until
from tests.support.redis_server import delayed, needs_redis, redis_server
from tests.support.tenants import away_from_the_minute, wall

pytestmark = needs_redis
BOUND = 400
PATIENCE_S = 1.0
TENANT = Tenant(id="a", requests_per_minute=BOUND)


@asynccontextmanager
async def routers(url, count=4, deadline_s=1.0):
    stores = [RedisStore(connect(url, PATIENCE_S), "test", PATIENCE_S) for _ in range(count)]
    made = [
        RedisLedger(f"router-{n}", store, deadline_s, lambda: count, wall)
        for n, store in enumerate(stores)
    ]
    tasks = [asyncio.create_task(ledger.work()) for ledger in made]
    try:
        yield made
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores:
            await store.aclose()


async def offer(ledgers, count, tenant=TENANT, tokens=0):
    """`count` requests over all routers, eight at a time each; how many were let in."""
    gates = {id(ledger): asyncio.Semaphore(8) for ledger in ledgers}

    async def one(number):
        ledger, ask = ledgers[number % len(ledgers)], Ask(tenant, tokens)
        async with gates[id(ledger)]:
            taken = await ledger.take(ask)
            if taken.refusal is None:
                ledger.end(ask, taken.window, tokens)
        return taken.refusal is None

    return sum(await asyncio.gather(*(one(number) for number in range(count))))


async def fails(ledgers, *, wanted):
    await offer(ledgers, len(ledgers), Tenant(id="other", requests_per_minute=10_000))
    return all(ledger.is_failing is wanted for ledger in ledgers)


async def test_twice_the_budget_over_four_routers_is_cut_exactly():
    await away_from_the_minute(20.0)
    async with redis_server() as server, routers(server.url) as ledgers:
        assert await offer(ledgers, 2 * BOUND) == BOUND
        tokens = Tenant(id="t", tokens_per_minute=50_000)
        assert await offer(ledgers, 2 * BOUND, tokens, tokens=125) == 400


async def test_a_redis_that_loses_everything_gives_out_nothing_twice():
    await away_from_the_minute(20.0)
    async with redis_server() as server, routers(server.url) as ledgers:
        before = await offer(ledgers, BOUND // 2)
        assert await server.command("FLUSHALL") == "+OK"
        after = await offer(ledgers, 2 * BOUND)
        assert before + after == BOUND


async def test_tokens_that_one_router_gives_back_are_there_for_all():
    tenant = Tenant(id="t", tokens_per_minute=1000)
    await away_from_the_minute(20.0)
    async with redis_server() as server, routers(server.url, 2) as [one, two]:
        big = Ask(tenant, 900)
        taken = await one.take(big)
        assert (await two.take(big)).refusal is not None
        one.end(big, taken.window, 100)

        async def is_free():
            return (await two.take(big)).refusal is None

        await until(is_free)
        assert (await one.take(Ask(tenant, 1))).refusal is not None


async def test_while_redis_is_away_shares_are_given_out_and_then_told():
    await away_from_the_minute(25.0)
    async with redis_server() as server, routers(server.url, deadline_s=0.2) as ledgers:
        before = await offer(ledgers, BOUND // 2)
        await server.kill()
        during = await offer(ledgers, BOUND // 4)
        assert during == BOUND // 4
        assert all(ledger.is_failing for ledger in ledgers)
        await server.start()
        await until(lambda: fails(ledgers, wanted=False))
        after = await offer(ledgers, 2 * BOUND)
        assert before + during + after <= BOUND * 1.01
        # an answer that came too late may have been counted twice: never more than were in flight
        assert before + during + after >= BOUND - 4 * 8


async def used_of(server, tenant_id):
    """Requests and tokens in this minute, as Redis has them."""
    script = "return tonumber(redis.call('HGET', KEYS[1], ARGV[1]))"
    key = "{test}:v1:tenant:" + tenant_id
    found = [await server.command("EVAL", script, "1", key, field) for field in ("r", "t")]
    return [int(line.removeprefix(":")) for line in found]


async def test_what_redis_books_too_late_is_not_booked_twice():
    tenant = Tenant(id="late", requests_per_minute=BOUND, tokens_per_minute=100_000)
    await away_from_the_minute(20.0)
    async with redis_server() as server, routers(server.url, 2, deadline_s=0.1) as ledgers:
        one = ledgers[0]
        let_in = await offer(ledgers, 20, tenant, tokens=10)
        for _ in range(5):
            server.pause()
            taken = await asyncio.gather(*(one.take(Ask(tenant, 10)) for _ in range(8)))
            server.resume()
            let_in += sum(each.refusal is None for each in taken)
            await until(lambda: fails([one], wanted=False))
        assert let_in > 20

        async def all_told():
            await fails(ledgers, wanted=False)
            return await used_of(server, "late") == [let_in, 10 * let_in]

        await until(all_told)
        # and not one more, or less, than the bound
        assert let_in + await offer(ledgers, 2 * BOUND, tenant, tokens=10) == BOUND


async def test_with_all_places_taken_a_late_redis_gives_none_away():
    tenant = Tenant(id="crowd", concurrent_requests=6)
    await away_from_the_minute(20.0)
    async with redis_server() as server, routers(server.url, 2, deadline_s=0.1) as [one, two]:
        asks = [Ask(tenant, 1) for _ in range(6)]
        taken = [await two.take(ask) for ask in asks]
        assert [each.refusal for each in taken] == [None] * 6
        assert (await one.take(Ask(tenant, 1))).refusal is not None
        server.pause()
        assert (await one.take(Ask(tenant, 1))).refusal is not None
        server.resume()
        await until(lambda: fails([one, two], wanted=False))
        for ask, each in zip(asks, taken, strict=True):
            two.end(ask, each.window, 1)

        async def is_free():
            return (await one.take(Ask(tenant, 1))).refusal is None

        await until(is_free)


async def test_a_paused_redis_holds_a_request_up_for_one_deadline_at_most():
    await away_from_the_minute(20.0)
    async with redis_server() as server, routers(server.url, 1, deadline_s=0.2) as [ledger]:
        await offer([ledger], 4)
        server.pause()
        started = wall()
        assert await offer([ledger], 50) == 50
        assert wall() - started < 2.0
        await until(lambda: fails([ledger], wanted=True))
        started = wall()
        assert await offer([ledger], 50) == 50
        assert wall() - started < 0.15
        server.resume()
        await until(lambda: fails([ledger], wanted=False))


async def test_a_full_or_forbidden_redis_lets_requests_through():
    await away_from_the_minute(20.0)
    async with redis_server() as server, routers(server.url) as ledgers:
        for harm, cure in (
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
            (("ACL", "SETUSER", "default", "-eval"), ("ACL", "SETUSER", "default", "+eval")),
        ):
            await server.command(*harm)
            assert await offer(ledgers, 8) == 8
            assert await server.command(*cure) == "+OK"
            await until(lambda: fails(ledgers, wanted=False))


async def test_requests_at_once_are_counted_over_routers_and_slow_answers_do_not_leak():
    tenant = Tenant(id="c", concurrent_requests=10)
    await away_from_the_minute(20.0)
    async with (
        redis_server() as server,
        delayed(server.port, 0.05) as port,
        routers(f"redis://127.0.0.1:{port}", 2) as ledgers,
    ):
        asks = [Ask(tenant, 0) for _ in range(30)]
        taken = await asyncio.gather(*(ledgers[n % 2].take(a) for n, a in enumerate(asks)))
        let_in = [n for n, one in enumerate(taken) if one.refusal is None]
        assert len(let_in) == 10
        for n in let_in:
            ledgers[n % 2].end(asks[n], taken[n].window, None)

        async def all_ended():
            one = await ledgers[0].take(asks[0])
            if one.refusal is None:
                ledgers[0].end(asks[0], one.window, None)
            return one.in_flight == 1

        await until(all_ended)


async def test_a_redis_that_loses_everything_gives_no_place_away_that_somebody_has():
    tenant = Tenant(id="crowd", concurrent_requests=6)
    wiped = 0
    async with redis_server() as server, routers(server.url, 4) as ledgers:
        for ledger in ledgers:
            ledger.wipes = lambda: wiped
        one, *others = ledgers
        # one router knows of nobody but itself, the others have all places
        assert (await one.take(Ask(TENANT, 1))).refusal is None
        asks = [(others[n % 3], Ask(tenant, 1)) for n in range(6)]
        taken = [await ledger.take(ask) for ledger, ask in asks]
        assert [each.refusal for each in taken] == [None] * 6
        assert await server.command("FLUSHALL") == "+OK"
        wants = [asyncio.create_task(one.take(Ask(tenant, 1))) for _ in range(2)]

        async def has_come_by():
            return await server.command("EXISTS", "{test}:v1:budgets") == ":1"

        await until(has_come_by)
        # the others learn of it by the exchange of loads, later than the first one asks
        wiped = 1
        assert [(await each).refusal for each in wants] == [Refusal.CONCURRENT] * 2
        for (ledger, ask), each in zip(asks, taken, strict=True):
            ledger.end(ask, each.window, 1)

        async def is_free():
            return (await one.take(Ask(tenant, 1))).refusal is None

        await until(is_free)


async def test_after_a_loss_places_are_given_again_though_a_router_is_gone():
    tenant = Tenant(id="crowd", concurrent_requests=6)
    async with redis_server() as server, routers(server.url, 2, deadline_s=0.1) as ledgers:
        one = ledgers[0]
        for ledger in ledgers:
            assert (await ledger.take(Ask(TENANT, 1))).refusal is None
        assert await server.command("FLUSHALL") == "+OK"
        # nobody tells the other one, and it has nothing to say by itself
        began = wall()
        taken = await one.take(Ask(tenant, 1))
        assert taken.refusal is None
        assert SETTLE_S / 2 < wall() - began < SETTLE_S + 1
        assert not one.is_failing
