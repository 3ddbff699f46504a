"""Open the parts, listen until told to stop, drain, close in reverse."""

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

import uvloop
from aiohttp import web

from router.config import RouterConfig
from router.gateway.app import build_app
from router.runtime import Runtime

log = logging.getLogger(__name__)

KEEPALIVE_S = 75.0


def run(config: RouterConfig) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a drain, 1 after a bug."""
    return uvloop.run(serve(config))


async def serve(config: RouterConfig) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with Runtime.open(config) as runtime:
        runner = web.AppRunner(
            build_app(runtime, config.listen.max_body_bytes),
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=config.listen.drain_s,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, config.listen.host, config.listen.port, backlog=2048)
            await site.start()
            _announce(config.listen.host, runner)
            crashed = await _until(stopping, runtime.crashed)
            runtime.readiness.withdraw()
            log.info("draining: %d requests in flight", runtime.in_flight())
            await asyncio.sleep(0 if crashed else config.listen.settle_s)
        finally:
            await runner.cleanup()
    return 1 if crashed else 0


def _announce(host: str, runner: web.AppRunner) -> None:
    """One line of JSON on stdout: whoever started us learns the port from it."""
    port = runner.addresses[0][1]
    name = f"[{host}]" if ":" in host else host
    sys.stdout.write(json.dumps({"url": f"http://{name}:{port}", "pid": os.getpid()}) + "\n")
    sys.stdout.flush()


async def _until(stopping: asyncio.Event, crashed: asyncio.Future[None]) -> bool:
    """Wait for either; True if a background task crashed."""
    stop = asyncio.ensure_future(stopping.wait())
    waiting: set[asyncio.Future[Any]] = {stop, crashed}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    return crashed.done()
