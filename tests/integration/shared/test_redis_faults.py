"""A real Redis that is paused, killed, emptied, filled, locked, slow, failed over."""

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial

from router.index.reservations import Reservation, Reservations
from router.shared import Peers, PeerTimes, RedisStore, connect
from tests.support.processes import until
from tests.support.redis_server import delayed, free_port, needs_redis, redis_server

pytestmark = needs_redis
DEADLINE_S = 0.2
TIMES = PeerTimes(interval_s=0.05, ttl_s=1.0, news_s=0.002)


def router(name, url):
    store = RedisStore(connect(url, DEADLINE_S), "test", DEADLINE_S)
    return Peers(name, store, Reservations(time.monotonic), time.monotonic, TIMES)


def busy_with(peers, tokens):
    peers.reservations.take(Reservation("r1", tokens, 9e3, (), time.monotonic()))


@asynccontextmanager
async def two_routers(url):
    """Two that know of each other's load."""
    one, two = router("one", url), router("two", url)
    busy_with(one, 100)
    tasks = []
    for peers in (one, two):
        peers.start(lambda name, work: tasks.append(asyncio.create_task(work(), name=name)))
    try:
        await until(lambda: sees(two, 100))
        yield one, two
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await one.leave()
        await two.leave()


async def sees(peers, tokens):
    return peers.reservations.load("r1").queued_tokens == tokens


async def is_in(peers, state):
    return peers.state == state


async def has_news(peers, state="ok"):
    return peers.news.state == state


async def news_go_around(one, two):
    """Both hear what the other does before it is exchanged."""
    for peers in (one, two):
        await until(partial(has_news, peers))

    async def is_known():
        return one.routers > 1

    await until(is_known)
    before = two.news.heard

    async def is_heard():
        return two.news.heard > before

    busy_with(one, 1)
    await until(is_heard)


async def test_a_router_that_is_stopped_at_any_instant_of_an_exchange_ends():
    async with redis_server() as server:
        peers = router("one", server.url)
        await peers.tick()
        for steps in range(25):
            task = asyncio.create_task(peers.keep())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            async with asyncio.timeout(10):
                await asyncio.wait([task])
        await peers.leave()


async def test_a_paused_redis_is_slow_and_its_news_go_stale():
    async with redis_server() as server, two_routers(server.url) as (one, two):
        server.pause()
        await until(lambda: is_in(two, "slow"))
        await until(lambda: sees(two, 0))
        server.resume()
        await until(lambda: is_in(two, "ok"))
        await until(lambda: sees(two, 100))
        await news_go_around(one, two)


async def test_a_killed_redis_is_down_and_an_empty_restart_is_filled():
    async with redis_server() as server, two_routers(server.url) as (one, two):
        await server.kill()
        await until(lambda: is_in(two, "down"))
        await until(lambda: sees(two, 0))
        busy_with(one, 11)
        await server.start()
        await until(lambda: is_in(two, "ok"))
        await until(lambda: sees(two, 111))
        await news_go_around(one, two)


async def test_a_wiped_redis_is_noticed_and_filled_within_an_exchange():
    async with redis_server() as server, two_routers(server.url) as (one, two):
        assert await server.command("FLUSHALL") == "+OK"

        async def noticed():
            return one.wipes + two.wipes >= 1

        await until(noticed)
        await until(lambda: sees(two, 100))
        await until(lambda: is_in(two, "ok"))


async def test_a_full_redis_says_so_passes_news_on_and_recovers():
    async with redis_server() as server, two_routers(server.url) as (one, two):
        assert await server.command("CONFIG", "SET", "maxmemory", "1") == "+OK"
        await until(lambda: is_in(two, "full"))
        await news_go_around(one, two)
        assert await server.command("CONFIG", "SET", "maxmemory", "0") == "+OK"
        await until(lambda: is_in(two, "ok"))
        await until(lambda: sees(two, 101))


async def test_a_user_that_may_not_is_denied_until_it_may():
    async with redis_server() as server:
        rules = "on >pass ~{test}:* +eval +time +hgetall +hset +hdel +pexpire".split()
        assert await server.command("ACL", "SETUSER", "gate", *rules) == "+OK"
        url = server.url.replace("//", "//gate:pass@")
        async with two_routers(url) as (one, two):
            await until(lambda: has_news(two, "denied"))
            assert two.state == "ok"
            channel = "+publish +subscribe &{test}:*".split()
            assert await server.command("ACL", "SETUSER", "gate", *channel) == "+OK"
            await news_go_around(one, two)
            assert await server.command("ACL", "SETUSER", "gate", "-hset") == "+OK"
            await until(lambda: is_in(two, "denied"))
            assert await server.command("ACL", "SETUSER", "gate", "+hset") == "+OK"
            await until(lambda: is_in(two, "ok"))
        wrong = router("wrong", server.url.replace("//", "//gate:wrong@"))
        await wrong.tick()
        assert wrong.state == "denied"
        await wrong.leave()


async def test_a_redis_that_takes_50_ms_is_good_enough_for_load():
    async with (
        redis_server() as server,
        delayed(server.port, 0.05) as port,
        two_routers(f"redis://127.0.0.1:{port}") as (one, two),
    ):
        busy_with(one, 11)
        await until(lambda: sees(two, 111))
        await until(lambda: is_in(two, "ok"))


async def test_a_redis_slower_than_the_deadline_holds_nobody_up():
    answer_s = 100 * DEADLINE_S
    async with redis_server() as server, delayed(server.port, answer_s) as port:
        peers = router("one", f"redis://127.0.0.1:{port}")
        started = time.monotonic()
        await peers.tick()
        assert peers.state == "slow"
        # a busy machine may add to the deadline, but nobody has waited for the answer
        assert time.monotonic() - started < answer_s / 4
        await peers.leave()


async def test_a_cluster_holds_it_all_on_one_node():
    # the port of its bus is higher by 10,000
    port = next(port for port in iter(free_port, None) if port < 50_000)
    async with redis_server("--cluster-enabled", "yes", port=port) as server:
        assert await server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == "+OK"

        async def has_all_slots():
            lines = await server.command("CLUSTER", "SHARDS")
            return await server.command("SET", "{test}:probe", "1") == "+OK" and lines == "*1"

        await until(has_all_slots)
        url = f"redis+cluster://127.0.0.1:{server.port}"
        async with two_routers(url) as (one, two):
            busy_with(one, 11)
            await until(lambda: sees(two, 111))
            await news_go_around(one, two)
            await server.kill()
            await until(lambda: is_in(two, "down"))
            await until(lambda: sees(two, 0))


async def test_sentinel_fails_over_to_the_second_server(tmp_path):
    async with redis_server() as first:
        replica = redis_server("--replicaof", "127.0.0.1", str(first.port))
        async with replica as second:
            config = tmp_path / "sentinel.conf"
            config.write_text(
                f"sentinel monitor gate 127.0.0.1 {first.port} 1\n"
                "sentinel down-after-milliseconds gate 500\n"
                "sentinel failover-timeout gate 2000\n"
            )
            assert second.port != first.port
            async with redis_server(str(config), "--sentinel", port=free_port()) as sentinel:

                async def knows_both():
                    lines = await sentinel.command("SENTINEL", "REPLICAS", "gate")
                    return lines == "*1"

                await until(knows_both)
                url = f"redis+sentinel://127.0.0.1:{sentinel.port}/gate"
                async with two_routers(url) as (one, two):
                    await until(lambda: has_news(two))
                    await first.kill()
                    await until(lambda: is_in(two, "down"))
                    await until(lambda: is_in(two, "ok"), within_s=30)
                    await until(lambda: sees(two, 100))
                    await news_go_around(one, two)
