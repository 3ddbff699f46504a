"""Requests that no replica could start in time wait in the gateway, and are seen to."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from router.config import parse_config
from router.record import RequestRecord
from tests.support.engines import PlainEngine, chat_body
from tests.support.gateway import gateway
from tests.support.processes import until


class HeldEngine(PlainEngine):
    """Gives no first byte until it is let."""

    def __init__(self):
        super().__init__()
        self.permits = asyncio.Semaphore(0)

    async def complete(self, request):
        body = await request.read()
        self.requests.append((dict(request.headers), body))
        await self.permits.acquire()
        text = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'
        return web.Response(body=text, content_type="text/event-stream")


@asynccontextmanager
async def held_engine():
    engine = HeldEngine()
    app = web.Application()
    app.router.add_get("/health", engine.health)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/v1/{tail:.*}", engine.complete)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield engine
    finally:
        await runner.cleanup()


@pytest.fixture
async def engine():
    async with held_engine() as engine:
        yield engine


def queueing(engine, **routing):
    # an idle replica takes at least 20 ms by what is believed before anything was learnt
    routing = {"slo_ttft_ms": 1.0, **routing}
    return gateway([{"id": "r1", "url": engine.url}], routing=routing)


async def ask(served, number=0):
    # prompts that have nothing in common: none is drawn to where another one is computed
    messages = [{"role": "user", "content": f"{number} " * 200}]
    body = json.dumps({"model": "m", "stream": True, "messages": messages})
    async with served.client.post("/v1/chat/completions", data=body) as response:
        return response.status, response.headers.get("retry-after"), await response.read()


async def start(served, engine, count):
    """The first is at the engine, the others wait."""
    records: list[RequestRecord] = []
    served.runtime.accounts.sinks = (*served.runtime.accounts.sinks, records.append)
    tasks = [asyncio.create_task(ask(served))]
    await until(lambda: _is(lambda: len(engine.requests) == 1))
    tasks += [asyncio.create_task(ask(served, n)) for n in range(1, count)]
    await until(lambda: _is(lambda: served.runtime.planner.queue.length == count - 1))
    return tasks, records


async def _is(look):
    return look()


async def metric(served, name):
    async with served.client.get("/metrics") as response:
        text = await response.text()
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


async def test_a_request_waits_until_the_replica_can_start_it_and_it_is_seen(engine):
    async with queueing(engine) as served:
        (first, second), records = await start(served, engine, 2)
        assert len(engine.requests) == 1
        assert await metric(served, "warmgate_queue_requests") == 1
        async with served.client.post("/debug/explain", data=chat_body()) as response:
            queue = (await response.json())["queue"]
        assert queue == {"slo_ttft_ms": 1.0, "requests": 1, "would_wait": True}
        engine.permits.release()
        assert (await first)[0] == 200
        await until(lambda: _is(lambda: len(engine.requests) == 2))
        engine.permits.release()
        assert (await second)[0] == 200
        assert records[0].queued_ms == 0
        assert records[1].queued_ms > 0
        assert records[1].predicted_ttft_ms > records[1].queued_ms
        assert records[1].total_ms >= records[1].queued_ms + records[1].plan_ms
        assert await metric(served, 'warmgate_queue_seconds_count{outcome="sent"}') == 1
        assert await metric(served, "warmgate_queue_requests") == 0


async def test_a_client_that_leaves_while_it_waits_takes_no_place_and_reaches_no_engine(engine):
    async with queueing(engine) as served:
        (first, second), records = await start(served, engine, 2)
        second.cancel()
        await until(lambda: _is(lambda: served.runtime.planner.queue.length == 0))
        engine.permits.release()
        await first
        assert len(engine.requests) == 1
        assert [record.outcome for record in records] == ["client_gone", "ok"]
        assert served.runtime.in_flight() == 0


async def test_a_full_queue_refuses_and_says_when_to_come_back(engine):
    async with queueing(engine, queue_requests=1) as served:
        (first, second), records = await start(served, engine, 2)
        status, retry_after, body = await ask(served)
        assert (status, b"queue_full" in body) == (503, True)
        assert int(retry_after) >= 1
        assert records[0].error == "queue_full"
        engine.permits.release()
        engine.permits.release()
        assert [(await one)[0] for one in (first, second)] == [200, 200]


@pytest.mark.parametrize(("then", "status"), [("send", 200), ("refuse", 503)])
async def test_what_waited_for_too_long_is_sent_or_refused(engine, then, status):
    async with queueing(engine, queue_wait_s=0.1, queue_then=then) as served:
        (first, second), _ = await start(served, engine, 2)
        await until(lambda: _is(lambda: served.runtime.planner.queue.length == 0))
        engine.permits.release()
        engine.permits.release()
        assert (await first)[0] == 200
        answer = await second
        assert answer[0] == status
        if then == "refuse":
            assert int(answer[1]) >= 1
            assert b"queue_timeout" in answer[2]


async def test_a_drain_sends_those_who_wait(engine):
    async with queueing(engine) as served:
        tasks, _ = await start(served, engine, 3)
        assert served.runtime.in_flight() == 3
        served.runtime.drain()
        await until(lambda: _is(lambda: len(engine.requests) == 3))
        for _ in tasks:
            engine.permits.release()
        assert [(await task)[0] for task in tasks] == [200, 200, 200]


async def test_a_replica_that_joins_by_a_reload_takes_who_waits(engine):
    async with held_engine() as other, queueing(engine) as served:
        (first, second), _ = await start(served, engine, 2)
        replicas = [{"id": "r1", "url": engine.url}, {"id": "r2", "url": other.url}]
        served.runtime.reload(parse_config({"replicas": replicas}))
        await until(lambda: _is(lambda: len(other.requests) == 1))
        other.permits.release()
        assert (await second)[0] == 200
        engine.permits.release()
        assert (await first)[0] == 200


async def test_who_waits_is_told_when_no_replica_is_left(engine):
    async with queueing(engine) as served:
        (first, second), _ = await start(served, engine, 2)
        served.runtime.pool.mark_down("r1", "gone")
        answer = await second
        assert (answer[0], b"no_replica_available" in answer[2]) == (503, True)
        engine.permits.release()
        assert (await first)[0] == 200
