"""Open the parts, listen until told to stop, drain, close in reverse."""

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import uvloop
from aiohttp import web

from router.busy_poll import never_sleep
from router.config import ConfigError
from router.entrance import Entrance
from router.gateway.app import build_admin_server, build_server
from router.gateway.aside import Aside
from router.gateway.limits import EdgeLimits
from router.gateway.server import EdgeServer
from router.runtime import Runtime
from router.settings import ListenSettings, RouterConfig
from router.shared.doors import Doors, doors_of
from router.tls import CertificateError, ListenerTls, renew, tls_to_replicas
from router.tokens.encoder import encode_in_the_calling_thread

log = logging.getLogger(__name__)

BACKLOG: Final = 2048
PARENT_S: Final = 1.0
SWITCH_S: Final = 0.0005
"""How long a thread that renders a long prompt keeps the event loop waiting (Python: 5 ms)."""

LAST_CALL_S: Final = 0.5
"""One of several processes that ends answers what comes for so long, and then closes connections
without a request. Whoever sends one meanwhile is told to use another connection next."""

GARBAGE_EVERY: Final = (5_000, 4, 4)
"""New objects between two looks for cyclic garbage among the youngest, and how many of those before
one looks at the older (Python: 700, 10, 10). A stream leaves some cycles in aiohttp and asyncio, so
all objects are looked at about as often as Python would, 80,000 new ones apart: with 2,000,000,
memory grew for ten minutes. The youngest are looked at a seventh as often, which saves the time."""

Reload = Callable[[], RouterConfig]


def run(config: RouterConfig, reload: Reload) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a drain, 1 after a bug. `reload`: for SIGHUP."""
    raise_file_limit()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*GARBAGE_EVERY)
    encode_in_the_calling_thread()
    try:
        return uvloop.run(serve(config, reload))
    except CertificateError as exc:
        raise ConfigError(str(exc)) from exc


async def serve(config: RouterConfig, reload: Reload) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    listen = config.listen
    tls = None
    if listen.tls_cert is not None:
        tls = ListenerTls(listen.tls_cert, listen.tls_key, listen.tls_client_ca)
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime.open(config))
        if config.shared.board is not None:
            runtime.supervisor.run("parent", lambda: end_with_parent(stopping))
        if listen.busy_poll:
            runtime.supervisor.run("busy poll", never_sleep)
        # the probes' listener outlives the clients': it says "draining" until the end
        aside = await stack.enter_async_context(_admin(runtime, config))
        port = await stack.enter_async_context(_listening(runtime, config, tls))
        loop.add_signal_handler(signal.SIGHUP, lambda: take_over(runtime, tls, reload))
        # what was built until now stays: no look for garbage need pass through it again
        gc.freeze()
        _announce(listen.host, port, is_tls=tls is not None, aside=aside)
        crashed = await until(stopping, runtime.crashed)
        runtime.drain()
        log.info("draining: %d requests in flight", runtime.in_flight())
        await asyncio.sleep(0 if crashed else listen.settle_s)
    return 1 if crashed else 0


async def end_with_parent(stopping: asyncio.Event) -> None:
    """Nobody would start us over, or stop us."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110  the kernel gives no event to wait for
        await asyncio.sleep(PARENT_S)
    stopping.set()


def take_over(runtime: Runtime, tls: ListenerTls | None, reload: Reload) -> None:
    """Read configuration and certificates again. What can't be used changes nothing."""
    try:
        config = reload()
        listen, forward = config.listen, config.forward
        tls_to_replicas(forward.tls_ca, forward.tls_cert)
        if tls is not None and listen.tls_cert is not None:
            tls.reload(listen.tls_cert, listen.tls_key, listen.tls_client_ca)
        renew(runtime.tls, forward.tls_ca, forward.tls_cert)
    except (ConfigError, CertificateError) as exc:
        log.error("not reloaded: %s", exc)
        return
    runtime.reload(config)
    log.info("reloaded: %d replicas", len(config.replicas))


def raise_file_limit() -> None:
    """A stream takes two descriptors: take all that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def _listening(
    runtime: Runtime, config: RouterConfig, tls: ListenerTls | None
) -> AsyncIterator[int]:
    """Accept clients; on leaving accept no more, let those in flight end, then cut them.

    Yields the port.
    """
    listen = config.listen
    server = build_server(
        runtime,
        limits_of(listen),
        cors_origins=listen.cors_origins,
        admin_elsewhere=listen.admin_port is not None,
    )
    runner = web.ServerRunner(server, shutdown_timeout=listen.drain_s)
    await runner.setup()
    if listen.sockets:
        async with _taking_turns(runtime, config, server, runner, tls) as port:
            yield port
        return
    try:
        site = web.TCPSite(
            runner,
            listen.host,
            listen.port,
            backlog=BACKLOG,
            ssl_context=None if tls is None else tls.context,
            reuse_port=listen.reuse_port or None,
        )
        await site.start()
        if listen.unix_path is not None:
            await web.UnixSite(runner, listen.unix_path, backlog=BACKLOG).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _taking_turns(
    runtime: Runtime,
    config: RouterConfig,
    server: EdgeServer,
    runner: web.ServerRunner,
    tls: ListenerTls | None,
) -> AsyncIterator[int]:
    """Accept from inherited sockets; on leaving, what was accepted is answered first."""
    sockets, shared = config.listen.sockets, config.shared
    doors = Doors(doors_of(shared.board or ""), shared.processes)
    context = None if tls is None else tls.context
    entrance = Entrance(
        *(runner, sockets, shared.slot, doors),
        is_ready=lambda: runtime.obstacle() is None,
        backlog=BACKLOG,
        tls=context,
    )
    try:
        runtime.supervisor.run("entrance", entrance.keep)
        yield entrance.port
    finally:
        await runtime.supervisor.stop("entrance")
        server.is_closing = True
        await entrance.shut()
        # a request may follow on a connection that was accepted just now
        await asyncio.sleep(LAST_CALL_S)
        await runner.cleanup()
        doors.close()


@asynccontextmanager
async def _admin(runtime: Runtime, config: RouterConfig) -> AsyncIterator[Aside | None]:
    if config.listen.admin_port is None:
        yield None
        return
    # one of several processes is asked by the one that speaks for all
    host = config.listen.host if config.shared.board is None else "127.0.0.1"
    aside = Aside(lambda: build_admin_server(runtime), host, config.listen.admin_port)
    aside.start()
    try:
        yield aside
    finally:
        await asyncio.to_thread(aside.stop)


def limits_of(listen: ListenSettings) -> EdgeLimits:
    return EdgeLimits(
        max_body_bytes=listen.max_body_bytes,
        max_head_bytes=listen.max_head_bytes,
        head_timeout_s=listen.head_timeout_s,
        body_timeout_s=listen.body_timeout_s,
        max_connections_per_client=listen.max_connections_per_client,
    )


def _announce(host: str, port: int, *, is_tls: bool, aside: Aside | None) -> None:
    """One line of JSON on stdout: whoever started us learns the port from it."""
    name = f"[{host}]" if ":" in host else host
    ready = {"url": f"http{'s' if is_tls else ''}://{name}:{port}", "pid": os.getpid()}
    if aside is not None:
        name = f"[{aside.host}]" if ":" in aside.host else aside.host
        ready["admin_url"] = f"http://{name}:{aside.port}"
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()


async def until(stopping: asyncio.Event, crashed: asyncio.Future[None]) -> bool:
    """Wait for either; True if a background task crashed."""
    stop = asyncio.ensure_future(stopping.wait())
    waiting: set[asyncio.Future[Any]] = {stop, crashed}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    return crashed.done()
