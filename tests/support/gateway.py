"""A gateway in this process, in front of whatever replicas a test has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from aiohttp import web

from router.config import parse_config
from router.gateway.app import build_server
from router.gateway.server import EdgeServer
from router.runtime import Runtime
from router.serve import limits_of
from tests.support.processes import MODEL_DIR, until


@dataclass(slots=True)
class Gateway:
    """A running gateway; `client` is a session whose base URL it is."""

    url: str
    runtime: Runtime
    server: EdgeServer
    client: aiohttp.ClientSession


@asynccontextmanager
async def gateway(
    replicas: Sequence[dict[str, Any]],
    *,
    is_ready: bool = True,
    keepalive_s: float | None = None,
    **sections: dict[str, Any],
) -> AsyncIterator[Gateway]:
    """Serve `replicas` (settings of each) until the block ends; `sections` override settings."""
    tree: dict[str, Any] = {"tokens": {"default": str(MODEL_DIR)}, **sections}
    config = parse_config({**tree, "replicas": list(replicas)})
    async with Runtime.open(config) as runtime:
        cors = config.listen.cors_origins
        limits = limits_of(config.listen)
        if keepalive_s is not None:
            limits = replace(limits, keepalive_s=keepalive_s)
        server = build_server(runtime, limits, cors_origins=cors)
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with aiohttp.ClientSession(url) as client:
                if is_ready:
                    await until(lambda: _no_obstacle(runtime))
                yield Gateway(url, runtime, server, client)
        finally:
            await runner.cleanup()


async def _no_obstacle(runtime: Runtime) -> bool:
    return runtime.obstacle() is None
