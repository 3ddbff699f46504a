"""`warmgate index`: the central index, for the routers of this host or of many."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack

import uvloop

from router.config import ConfigError
from router.gateway.aside import Aside
from router.gateway.index_admin import build_index_server
from router.index_runtime import IndexRuntime
from router.serve import GARBAGE_EVERY, SWITCH_S, Reload, end_with_parent, raise_file_limit, until
from router.settings import RouterConfig
from router.tls import CertificateError

log = logging.getLogger(__name__)


def run(config: RouterConfig, reload: Reload) -> int:
    """Answer until SIGTERM or SIGINT; 1 after a bug. `reload`: for SIGHUP."""
    raise_file_limit()
    # the admin thread must not keep a question waiting
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*GARBAGE_EVERY)
    try:
        return uvloop.run(serve_index(config, reload))
    except (CertificateError, OSError) as exc:
        raise ConfigError(str(exc)) from exc


async def serve_index(config: RouterConfig, reload: Reload) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(IndexRuntime.open(config))
        if config.shared.board is not None:
            runtime.supervisor.run("parent", lambda: end_with_parent(stopping))
        listen = config.listen
        aside = Aside(lambda: build_index_server(runtime), listen.host, listen.port)
        aside.start()
        stack.push_async_callback(asyncio.to_thread, aside.stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: _take_over(runtime, reload))
        gc.freeze()
        _announce(runtime, aside)
        crashed = await until(stopping, runtime.supervisor.crashed)
    return 1 if crashed else 0


def _take_over(runtime: IndexRuntime, reload: Reload) -> None:
    try:
        config = reload()
    except ConfigError as exc:
        log.error("not reloaded: %s", exc)
        return
    runtime.reload(config)
    log.info("reloaded: %d replicas", len(config.replicas))


def _announce(runtime: IndexRuntime, aside: Aside) -> None:
    """One line of JSON on stdout, as `serve` does: where operators ask, and where routers do."""
    name = f"[{aside.host}]" if ":" in aside.host else aside.host
    ready = {
        "url": f"http://{name}:{aside.port}",
        "pid": os.getpid(),
        "address": str(runtime.address),
    }
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
