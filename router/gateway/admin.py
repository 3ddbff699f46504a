"""What operators ask: is it alive, is it ready, what does it know?"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from router.events.snapshot import encode_snapshot
from router.gateway.describe import describe_replicas
from router.gateway.replies import json_response
from router.runtime import Runtime

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_READS = 5

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
    """Prometheus' text format."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        return web.Response(
            body=read(self._runtime.metrics.exposition),
            headers={"content-type": METRICS_CONTENT_TYPE},
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
        body = encode_snapshot(replicas)
        return web.Response(body=body, content_type="application/msgpack")


class DebugReplicas:
    """Each replica as the router sees it now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        return json_response({"replicas": read(lambda: describe_replicas(self._runtime))})


def read(look: Callable[[], T]) -> T:
    """`look()`, again if the data path's thread changed a dictionary under it."""
    for _ in range(_READS - 1):
        try:
            return look()
        except RuntimeError:
            continue
    return look()
