"""What operators ask: is it alive, is it ready, what does it know?"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from aiohttp import web

from router.events.snapshot import encode_in_turns
from router.gateway.describe import describe_replicas
from router.gateway.replies import json_response
from router.metrics import Metrics as Numbers
from router.runtime import Runtime

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_READS = 5
LOOK_S: Final = 0.05
"""So long a scrape waits for the data path's loop."""

T = TypeVar("T")


async def healthz(request: web.BaseRequest) -> web.Response:
    """200 as long as the process answers: restarting it would not help a missing replica."""
    return json_response({"status": "ok"})


class Readyz:
    """200 when a request sent now would be served, and chosen for as well as can be."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        obstacle = read(self._runtime.obstacle)
        if obstacle is None:
            return json_response({"status": "ready"})
        return json_response({"status": "not ready", "reason": obstacle}, 503)


class Metrics:
    """Prometheus' text format. `loop`: the data path's; where it is busy, replicas are shown as
    they were at the last scrape."""

    def __init__(self, metrics: Numbers, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics, self._loop = metrics, loop

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await see(self._loop, self._metrics.look)
        return web.Response(
            body=read(self._metrics.exposition), headers={"content-type": METRICS_CONTENT_TYPE}
        )


class Models:
    """Every model that a healthy replica serves, once, in the engine's own words."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self._runtime.gate.authenticate(request.headers)
        rows = {
            name: row
            for member in self._runtime.pool
            if member.is_healthy
            for name, row in member.models.items()
        }
        return json_response({"object": "list", "data": [rows[name] for name in sorted(rows)]})


class Snapshot:
    """The index, for a router that starts: msgpack, see `router.events.snapshot`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        # The data path's loop must take it, and this handler may run in another thread.
        loop = self._runtime.crashed.get_loop()
        taking = asyncio.run_coroutine_threadsafe(self._runtime.keeper.snapshot(), loop)
        replicas = await asyncio.wrap_future(taking)
        body = await encode_in_turns(replicas)
        return web.Response(body=body, content_type="application/msgpack")


class DebugReplicas:
    """Each replica as the router sees it now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        runtime = self._runtime
        rows = await see(runtime.crashed.get_loop(), lambda: describe_replicas(runtime))
        return json_response({"replicas": rows})


async def see(loop: asyncio.AbstractEventLoop, look: Callable[[], T]) -> T:
    """`look()`, by the thread of the data path's loop: what is read there is that thread's, and to
    read it may book what waits to be booked."""
    if loop is asyncio.get_running_loop():
        return look()

    async def looked() -> T:
        return look()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(looked(), loop))


def read(look: Callable[[], T]) -> T:
    """`look()` at what no reading changes; again if the data path's thread changed a dictionary
    under it."""
    for _ in range(_READS - 1):
        try:
            return look()
        except RuntimeError:
            continue
    return look()
