"""What goes on from a stored response goes to the replica that keeps it, by any router."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from tests.support.gateway import gateway
from tests.support.processes import until
from tests.support.redis_server import needs_redis, redis_server
from tests.support.responses_engine import MODEL, PATH, ResponsesEngine

IN_TURN = {"policy": "round-robin"}
DEADLINE_S = 0.2


@asynccontextmanager
async def routers(count, *, replicas=3, url=None):
    """Routers that take replicas in turn, so that only knowledge brings a follow-up home."""
    engines = [ResponsesEngine() for _ in range(replicas)]
    shared = {"interval_s": 0.05, "deadline_ms": 1e3 * DEADLINE_S}
    if url is not None:
        shared["url"] = url
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.listen()
            stack.push_async_callback(engine.stop)
        rows = [{"id": f"r{n}", "url": e.url} for n, e in enumerate(engines, 1)]
        opened = [
            await stack.enter_async_context(
                gateway(rows, shared=shared, routing=IN_TURN, tokens={"remote": False})
            )
            for _ in range(count)
        ]
        yield engines, opened


async def ask(router, text, previous=None, **more):
    """Status, and the response's id."""
    body = {"model": MODEL, "input": text, "previous_response_id": previous, **more}
    async with router.client.post(PATH, json=body) as reply:
        data = await reply.read()
    if more.get("stream") and reply.status == 200:
        data = data.partition(b"data: ")[2].partition(b"\n\n")[0]
        return reply.status, json.loads(data)["response"]["id"]
    return reply.status, json.loads(data).get("id")


async def all_told(router):
    async def nothing_left():
        return not router.runtime.owners._notes

    await until(nothing_left)


async def test_a_router_alone_remembers_who_keeps_a_response():
    async with routers(1) as (_, [one]):
        for is_stream in (False, True):
            name = None
            for turn in range(8):
                status, name = await ask(one, f"turn {turn}", name, stream=is_stream)
                assert status == 200
        assert one.runtime.owners.counts == {"here": 14}


@needs_redis
async def test_a_conversation_that_wanders_over_routers_finds_its_replica():
    async with redis_server() as server, routers(3, url=server.url) as (engines, opened):

        async def talk(number):
            name = None
            for turn in range(6):
                router = opened[(number + turn) % len(opened)]
                is_stream = bool(turn % 2)
                status, name = await ask(router, f"{number} {turn}", name, stream=is_stream)
                assert status == 200
                await all_told(router)
            return name

        names = await asyncio.gather(*(talk(number) for number in range(12)))
        kept = {name: said for engine in engines for name, said in engine.kept.items()}
        assert [kept[name] for name in names] == [
            [f"{number} {turn}" for turn in range(6)] for number in range(12)
        ]
        assert all(router.runtime.owners.counts["shared"] for router in opened)


@needs_redis
async def test_a_client_that_leaves_after_the_id_can_go_on():
    async with redis_server() as server, routers(2, url=server.url) as (_, [one, two]):
        body = {"model": MODEL, "input": "first", "stream": True}
        async with aiohttp.ClientSession(one.url) as client:
            reply = await client.post(PATH, json=body)
            event = await reply.content.readuntil(b"\n\n")
            reply.close()
        name = json.loads(event.partition(b"data: ")[2])["response"]["id"]
        await all_told(one)
        assert (await ask(two, "second", name))[0] == 200


@needs_redis
async def test_nobody_waits_longer_than_the_deadline_for_a_redis_that_does_not_answer():
    async with redis_server() as server, routers(2, url=server.url) as (_, [one, two]):
        _, name = await ask(one, "first")
        await all_told(one)
        server.pause()
        try:
            started = time.monotonic()
            status, _ = await ask(two, "second", name)
            took_s = time.monotonic() - started
            assert status in (200, 404)
            assert took_s < 10 * DEADLINE_S
            assert two.runtime.owners.counts["failed"] == 1
            # who has seen it needs nobody
            assert (await ask(one, "second", name))[0] == 200
        finally:
            server.resume()


@needs_redis
async def test_what_a_full_redis_refused_is_told_when_there_is_room():
    async with redis_server() as server, routers(2, url=server.url) as (_, [one, two]):
        assert await server.command("CONFIG", "SET", "maxmemory", "1") == "+OK"
        _, name = await ask(one, "first")

        async def refused():
            return one.runtime.owners.failures["full"] > 0

        await until(refused)
        assert await server.command("CONFIG", "SET", "maxmemory", "0") == "+OK"
        await all_told(one)
        assert (await ask(two, "second", name))[0] == 200


@needs_redis
async def test_what_a_wiped_redis_has_lost_is_unknown_and_no_failure_of_ours():
    async with redis_server() as server, routers(2, url=server.url) as (_, [one, two]):
        _, name = await ask(one, "first")
        await all_told(one)
        assert await server.command("FLUSHALL") == "+OK"
        status, _ = await ask(two, "second", name)
        assert status in (200, 404)
        assert two.runtime.owners.counts["unknown"] == 1
        assert (await ask(one, "second", name))[0] == 200


async def test_an_answer_that_is_not_to_be_kept_is_not_remembered():
    async with routers(1) as (_, [one]):
        assert (await ask(one, "first", store=False))[0] == 200
        assert len(one.runtime.owners) == 0


async def test_without_its_replica_the_others_say_that_they_know_of_none():
    async with routers(1) as (engines, [one]):
        _, name = await ask(one, "first")
        [owner] = [n for n, engine in enumerate(engines) if name in engine.kept]
        one.runtime.pool.mark_down(f"r{owner + 1}", "gone")
        assert (await ask(one, "second", name))[0] == 404
