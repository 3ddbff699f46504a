"""Two gateways over one set of replicas, with a Redis that comes and goes under traffic."""

import asyncio

from router.index.reservations import Reservation
from tests.support.faults import CHAT, FaultyEngine, works, works_slowly
from tests.support.gateway import gateway
from tests.support.processes import until
from tests.support.redis_server import needs_redis, redis_server

pytestmark = needs_redis
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


def settings(server, **more):
    shared = {"url": server.url, "interval_s": 0.05, "ttl_s": 1.0, "deadline_ms": 200}
    return {"shared": shared, "tokens": {"remote": False}, **more}


async def replicas(*faults):
    engines = [FaultyEngine(fault) for fault in faults]
    for engine in engines:
        await engine.listen()
    return engines, [{"id": f"r{n}", "url": e.url} for n, e in enumerate(engines, 1)]


async def state_of(one):
    async with one.client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    [line] = [line for line in lines if line.startswith("warmgate_shared_state{")]
    return line.partition('"')[2].partition('"')[0]


async def ask(one):
    async with one.client.post(CHAT, json=BODY) as response:
        return response.status, (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_a_router_sends_elsewhere_what_another_has_filled():
    engines, rows = await replicas(works_slowly, works_slowly)
    least = {"routing": {"policy": "least-loaded"}}
    async with (
        redis_server() as server,
        gateway(rows, **settings(server, **least)) as one,
        gateway(rows, **settings(server, **least)) as two,
    ):
        first = await one.client.post(CHAT, json=BODY)
        busy = first.headers["x-warmgate-replica"]
        load = two.runtime.reservations

        async def is_known():
            return load.load(busy).in_flight == 1

        await until(is_known)
        second = await two.client.post(CHAT, json=BODY)
        assert second.headers["x-warmgate-replica"] != busy
        first.close()
        second.close()

        async def is_idle():
            return not any(load.load(row["id"]).in_flight for row in rows)

        await until(is_idle)
    for engine in engines:
        await engine.stop()


async def test_a_session_that_one_router_moved_stays_where_it_went_for_another():
    engines, rows = await replicas(works, works, works, works)
    async with (
        redis_server() as server,
        gateway(rows, **settings(server)) as one,
        gateway(rows, **settings(server)) as two,
    ):

        async def where(target, session):
            headers = {"x-session-id": session}
            async with target.client.post(CHAT, json=BODY, headers=headers) as response:
                await response.read()
                return response.headers["x-warmgate-replica"]

        session = "s"
        home = await where(two, session)
        for engine in engines:
            engine.fault = works_slowly
        # its home is crowded when it comes to the other router
        now = one.runtime.clock
        crowd = [Reservation(home, 20_000, 9e3, (), now()) for _ in range(4)]
        for claim in crowd:
            one.runtime.reservations.take(claim)
        moving = await one.client.post(CHAT, json=BODY, headers={"x-session-id": session})
        new_home = moving.headers["x-warmgate-replica"]
        assert new_home != home
        moving.close()
        for claim in crowd:
            one.runtime.reservations.release(claim)
        for engine in engines:
            engine.fault = works

        async def is_heard():
            return two.runtime.peers.moved.home(session, now()) == new_home

        await until(is_heard)

        async def is_idle():
            load = two.runtime.reservations
            return not any(load.load(row["id"]).in_flight for row in rows)

        await until(is_idle)
        assert await where(two, session) == new_home
    for engine in engines:
        await engine.stop()


async def test_no_request_fails_while_redis_is_killed_and_comes_back_empty():
    engines, rows = await replicas(works, works)
    async with (
        redis_server() as server,
        gateway(rows, **settings(server)) as one,
        gateway(rows, **settings(server)) as two,
    ):
        done, is_over = [], asyncio.Event()

        async def client(target):
            while not is_over.is_set():
                done.append(await ask(target))

        clients = [asyncio.create_task(client(target)) for target in (one, two, one, two)]

        async def both(state):
            return {await state_of(one), await state_of(two)} == {state}

        async def served(count):
            return len(done) >= count

        try:
            await until(lambda: both("ok"))
            await server.kill()
            await until(lambda: both("down"))
            during = len(done)
            await until(lambda: served(during + 50))
            async with asyncio.timeout(15):
                await server.start()
            await until(lambda: both("ok"))
        finally:
            # else gateways would wait for clients that never end, and hide what went wrong
            is_over.set()
        async with asyncio.timeout(15):
            await asyncio.gather(*clients)
        assert set(done) == {(200, True)}

        async def know_each_other():
            return one.runtime.peers.routers == two.runtime.peers.routers == 2

        await until(know_each_other)
    for engine in engines:
        await engine.stop()


async def test_without_redis_the_state_is_off_and_nothing_is_exchanged():
    engines, rows = await replicas(works)
    async with gateway(rows, tokens={"remote": False}) as one:
        assert await state_of(one) == "off"
        assert await ask(one) == (200, True)
    await engines[0].stop()
