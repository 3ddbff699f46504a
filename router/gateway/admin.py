"""What operators ask: is it alive, is it ready, what does it know?"""

from aiohttp import web

from router.gateway.replies import json_response
from router.runtime import RUNTIME

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def healthz(request: web.Request) -> web.Response:
    """200 as long as the process answers: restarting it would not help a missing replica."""
    return json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """200 when a request sent now would be served, and chosen for as well as can be."""
    obstacle = request.app[RUNTIME].obstacle()
    if obstacle is None:
        return json_response({"status": "ready"})
    return json_response({"status": "not ready", "reason": obstacle}, 503)


async def metrics(request: web.Request) -> web.Response:
    """Prometheus' text format."""
    return web.Response(
        body=request.app[RUNTIME].metrics.exposition(),
        headers={"content-type": METRICS_CONTENT_TYPE},
    )


async def models(request: web.Request) -> web.Response:
    """Every model that a healthy replica serves, once, in the engine's own words."""
    rows = {
        name: row
        for member in request.app[RUNTIME].pool
        if member.is_healthy
        for name, row in member.models.items()
    }
    return json_response({"object": "list", "data": [rows[name] for name in sorted(rows)]})


async def debug_replicas(request: web.Request) -> web.Response:
    """Each replica as the router sees it now."""
    return json_response({"replicas": request.app[RUNTIME].describe_replicas()})
