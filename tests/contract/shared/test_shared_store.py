"""What every store of reports does, in memory and in a real Redis."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from router.shared import MemoryStore, RedisStore, connect
from tests.support.processes import until
from tests.support.redis_server import needs_redis, redis_server


@asynccontextmanager
async def memory():
    yield MemoryStore(time.monotonic)


@asynccontextmanager
async def redis():
    async with redis_server() as server:
        store = RedisStore(connect(server.url, 2.0), "test", 2.0)
        yield store
        await store.aclose()


@pytest.fixture(params=[memory, pytest.param(redis, marks=needs_redis)])
async def store(request):
    async with request.param() as made:
        yield made


async def test_a_router_gets_the_others_reports_and_not_its_own(store):
    assert (await store.exchange("a", b"\x00a", 5.0)).others == {}
    assert (await store.exchange("b", b"\xffb", 5.0)).others == {"a": b"\x00a"}
    assert (await store.exchange("a", b"a2", 5.0)).others == {"b": b"\xffb"}
    assert (await store.exchange("b", b"b2", 5.0)).others == {"a": b"a2"}


async def test_it_says_whether_our_last_report_was_still_there(store):
    assert not (await store.exchange("a", b"a", 5.0)).was_known
    assert (await store.exchange("a", b"a", 5.0)).was_known


async def test_a_report_is_void_after_its_time(store):
    await store.exchange("a", b"a", 0.2)
    await store.exchange("long", b"l", 60.0)

    async def is_void():
        return "a" not in (await store.exchange("b", b"b", 60.0)).others

    assert not await is_void()
    await until(is_void)


async def test_a_router_that_leaves_is_gone_at_once(store):
    await store.exchange("a", b"a", 5.0)
    await store.leave("a")
    await store.leave("never was")
    assert (await store.exchange("b", b"b", 5.0)).others == {}


async def test_sixteen_routers_at_once_lose_nothing(store):
    names = [f"r{i}" for i in range(16)]
    await asyncio.gather(*(store.exchange(n, n.encode(), 5.0) for n in names))
    got = await store.exchange("r0", b"r0", 5.0)
    assert got.others == {n: n.encode() for n in names[1:]}


async def test_news_are_heard_in_order_by_all_who_listen_and_by_nobody_after(store):
    heard: dict[str, list[bytes]] = {"a": [], "b": []}
    ready = []
    await store.publish(b"before anybody listens")
    listening = [
        asyncio.create_task(store.listen(heard[name].append, lambda name=name: ready.append(name)))
        for name in heard
    ]

    async def all_listen():
        return sorted(ready) == ["a", "b"]

    await until(all_listen)
    news = [b"\x00 1", b"\xff 2", b"", b"4" * 100_000]
    for one in news:
        await store.publish(one)

    async def all_heard():
        return len(heard["a"]) == len(heard["b"]) == len(news)

    await until(all_heard)
    assert heard == {"a": news, "b": news}
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    await store.publish(b"after")
    assert all(task.cancelled() for task in listening)
    assert heard == {"a": news, "b": news}
