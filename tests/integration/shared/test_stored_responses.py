"""What goes on from a stored response goes to the replica that keeps it, by any router."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

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
                # the note goes to Redis beside the answer, not before it
                await all_told(router)
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


async def touch(router, name, what="", method="GET"):
    """Status, and the answer."""
    async with router.client.request(method, f"{PATH}/{name}{what}") as reply:
        return reply.status, await reply.read(), reply.headers


def touched(engines):
    return [[(method, name) for method, name, _ in engine.touched] for engine in engines]


@pytest.mark.parametrize(
    ("method", "what"),
    [("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")],
)
async def test_what_is_done_with_a_response_is_done_where_it_is_kept(method, what):
    async with routers(1) as (engines, [one]):
        for _ in range(4):
            _, name = await ask(one, "first")
            [owner] = [n for n, engine in enumerate(engines) if name in engine.kept]
            status, data, headers = await touch(one, name, what, method)
            assert (status, json.loads(data)["id"]) == (200, name)
            assert headers["x-warmgate-replica"] == f"r{owner + 1}"
            assert headers["x-warmgate-reason"] == "kept"
            assert engines[owner].touched[-1][:2] == (method, name)
        assert sum(map(len, touched(engines))) == 4


async def test_a_kept_response_is_read_as_a_stream_from_where_the_client_wants():
    async with routers(1) as (engines, [one]):
        _, name = await ask(one, "first")
        status, data, headers = await touch(one, name, "?stream=true&starting_after=3")
        assert status == 200
        assert headers["content-type"] == "text/event-stream"
        assert data.startswith(b"event: response.completed")
        [row] = [row for engine in engines for row in engine.touched]
        assert row[2] == "stream=true&starting_after=3"


async def test_a_deleted_response_is_gone_and_its_engine_says_so():
    async with routers(1) as (_, [one]):
        _, name = await ask(one, "first")
        assert (await touch(one, name, method="DELETE"))[0] == 200
        status, data, headers = await touch(one, name)
        assert (status, headers["x-warmgate-reason"]) == (404, "kept")
        assert name in json.loads(data)["error"]["message"]


async def test_what_no_router_has_seen_is_asked_of_one_replica_after_another_once():
    async with routers(1) as (engines, [one]):
        engines[2].kept["resp_old"] = ["before this router"]
        status, data, headers = await touch(one, "resp_old")
        assert (status, json.loads(data)["said"]) == (200, ["before this router"])
        assert headers["x-warmgate-replica"] == "r3"
        assert headers["x-warmgate-reason"] == "asked_around"
        asked = [len(engine.touched) for engine in engines]
        assert max(asked) == asked[2] == 1
        # from then on it is known
        assert (await touch(one, "resp_old"))[2]["x-warmgate-reason"] == "kept"
        assert [len(engine.touched) for engine in engines] == [*asked[:2], 2]
        # three tries are not for ever
        status, data, _ = await touch(one, "resp_nobodys")
        assert status == 404
        assert "resp_nobodys" in json.loads(data)["error"]["message"]
        assert [len(engine.touched) for engine in engines] == [asked[0] + 1, asked[1] + 1, 3]
        assert one.runtime.pool.get("r1").breaker.allows


async def test_a_replica_that_is_down_or_has_left_is_not_taken_for_another():
    async with routers(1) as (engines, [one]):
        _, name = await ask(one, "first")
        [owner] = [n for n, engine in enumerate(engines) if name in engine.kept]
        one.runtime.pool.mark_down(f"r{owner + 1}", "gone")
        status, data, headers = await touch(one, name)
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(data)["error"]["code"] == "no_replica_available"
        left = [m.replica for m in one.runtime.pool if m.id != f"r{owner + 1}"]
        one.runtime.named.replace(left)

        async def has_left():
            return one.runtime.pool.get(f"r{owner + 1}") is None

        await until(has_left)
        status, data, _ = await touch(one, name)
        assert status == 404
        assert json.loads(data)["error"]["code"] == "response_not_found"
        assert sum(len(engine.touched) for engine in engines) == 0


async def test_other_methods_and_paths_are_refused_without_asking_a_replica():
    async with routers(1) as (engines, [one]):
        _, name = await ask(one, "first")
        assert (await touch(one, name, method="PUT"))[0] == 405
        assert (await touch(one, name, "/cancel", method="GET"))[0] == 405
        assert (await touch(one, name, "/other"))[0] == 404
        assert (await touch(one, "x" * 300))[0] == 404
        assert sum(len(engine.touched) for engine in engines) == 0


@needs_redis
async def test_another_router_reads_and_deletes_what_this_one_had_kept():
    async with redis_server() as server, routers(2, url=server.url) as (_, [one, two]):
        _, name = await ask(one, "first")
        await all_told(one)
        status, _, headers = await touch(two, name)
        assert (status, headers["x-warmgate-reason"]) == (200, "kept")
        assert (await touch(two, name, method="DELETE"))[0] == 200
        assert (await touch(one, name))[0] == 404
