"""What operators ask the central index's process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from router.events.snapshot import encode_in_turns
from router.gateway.admin import Metrics, healthz, read, see
from router.gateway.app import Gateway, Handler
from router.gateway.cors import Cors
from router.gateway.describe import describe_known
from router.gateway.limits import EdgeLimits
from router.gateway.replies import json_response
from router.gateway.server import EdgeServer
from router.index_runtime import IndexRuntime


def build_index_server(runtime: IndexRuntime) -> EdgeServer:
    """Probes, metrics, debug and the snapshot. Its handlers may run in a thread of their own."""
    answers = _Answers(runtime)
    routes: dict[str, Mapping[str, Handler]] = {
        "/healthz": {"GET": healthz},
        "/readyz": {"GET": answers.readyz},
        "/metrics": {"GET": Metrics(runtime.metrics, answers.loop)},
        "/debug/replicas": {"GET": answers.replicas},
        "/internal/snapshot": {"GET": answers.snapshot},
    }
    return EdgeServer(Gateway(lambda path: routes.get(path, {}), Cors(())).handle, EdgeLimits())


class _Answers:
    def __init__(self, runtime: IndexRuntime) -> None:
        self._runtime = runtime
        self.loop = runtime.supervisor.crashed.get_loop()

    async def readyz(self, request: web.BaseRequest) -> web.Response:
        obstacle = read(self._runtime.obstacle)
        if obstacle is None:
            return json_response({"status": "ready"})
        return json_response({"status": "not ready", "reason": obstacle}, 503)

    async def replicas(self, request: web.BaseRequest) -> web.Response:
        desk = self._runtime.desk
        body = {
            "replicas": await see(self.loop, self._describe),
            "routers": desk.routers,
            "questions": desk.counters.questions,
        }
        return json_response(body)

    async def snapshot(self, request: web.BaseRequest) -> web.Response:
        """See `admin.Snapshot`: the loop that follows must take it."""
        taking = asyncio.run_coroutine_threadsafe(self._runtime.keeper.snapshot(), self.loop)
        replicas = await asyncio.wrap_future(taking)
        body = await encode_in_turns(replicas)
        return web.Response(body=body, content_type="application/msgpack")

    def _describe(self) -> list[dict[str, Any]]:
        runtime = self._runtime
        return [
            {
                "id": member.id,
                "url": member.replica.url,
                "events_url": member.replica.events_url,
                "is_healthy": member.is_healthy,
                "last_error": member.last_error,
                **describe_known(runtime.index, runtime.keeper, member.id),
            }
            for member in runtime.pool
        ]
