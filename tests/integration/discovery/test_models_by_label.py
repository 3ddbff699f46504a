"""An engine that won't list its models serves what its pod's labels say."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from router.replicas import Pool
from router.replicas.health import Prober
from router.replicas.times import ProbeTimes
from tests.support.builders import ManualClock, replica
from tests.support.processes import until


@asynccontextmanager
async def engine(models_status):
    async def health(request):
        return web.Response()

    async def models(request):
        return web.json_response({"error": "no"}, status=models_status)

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def probed(url, **labels):
    pool = Pool(ManualClock())
    (member,) = pool.reconcile([replica("r1", url, **labels)]).joined
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        prober = Prober(pool, session, ProbeTimes(retry_interval_s=0.05))
        task = asyncio.create_task(prober.watch(member))
        try:
            yield pool, member
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def reaches(member, error):
    async def holds():
        return member.last_error == error

    await until(holds)


@pytest.mark.parametrize("status", [401, 404])
async def test_a_list_that_is_refused_leaves_what_labels_say(status):
    async with engine(status) as url, probed(url, model="m", adapters=("a",)) as (pool, member):
        await reaches(member, "")
        assert pool.available("m") == pool.available("a") == [member]


@pytest.mark.parametrize(("status", "labels"), [(404, {}), (503, {"model": "m"})])
async def test_without_labels_or_with_an_engine_that_fails_it_is_down(status, labels):
    async with engine(status) as url, probed(url, **labels) as (_, member):
        await reaches(member, f"ValueError: GET /v1/models answered {status}")
        assert not member.is_healthy
