"""Real engines and routers as processes that tests start, kill and start again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[2]
MODEL_DIR = ROOT / "workers" / "engine" / "model"
START_S = 30.0


@dataclass(slots=True)
class Program:
    """One of our programs; `ready` is the line of JSON that it printed when it was."""

    arguments: tuple[str, ...]
    process: asyncio.subprocess.Process
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    async def kill(self) -> None:
        """SIGKILL: no goodbye."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM, then wait; returns the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            return await self.process.wait()


async def start(*arguments: str, log: Path | None = None) -> Program:
    """Run `python -m ARGUMENTS` and wait until it says that it is ready. `log`: where stderr goes,
    instead of to ours."""
    errors = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE,
            stderr=errors, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    finally:
        if errors is not None:
            os.close(errors)
    program = Program(arguments, process)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
    except BaseException:
        await program.kill()
        raise
    if not line:
        raise RuntimeError(f"{' '.join(arguments)} ended with {await process.wait()}")
    program.ready = json.loads(line)
    return program


async def start_engine(
    *flags: str, port: str = "0", events: str = "0", replay: str = "0"
) -> Program:
    ports = ("--port", port, "--events-port", events, "--replay-port", replay)
    return await start("workers.cli", "engine", *ports, *flags)


async def start_again(engine: Program, *flags: str) -> Program:
    """A new engine at a dead one's addresses."""
    ports = [
        str(engine.ready[key]).rpartition(":")[2] for key in ("url", "events_url", "replay_url")
    ]
    return await start_engine(*flags, port=ports[0], events=ports[1], replay=ports[2])


async def start_router(engines: Sequence[Program], *flags: str) -> Program:
    replicas = []
    for number, engine in enumerate(engines, 1):
        text = f"id=r{number},url={engine.url}"
        text += f",events={engine.ready['events_url']},replay={engine.ready['replay_url']}"
        replicas += ["--replica", text]
    return await start(
        "router.cli", "serve", "--port", "0", "--tokenizer", str(MODEL_DIR), *replicas, *flags
    )


@dataclass(slots=True)
class Fleet:
    """Engines behind a router. `engines[i]` is the replica `r{i + 1}`."""

    engines: list[Program]
    router: Program
    session: aiohttp.ClientSession
    engine_flags: tuple[str, ...]

    @property
    def model(self) -> str:
        return str(self.engines[0].ready["model"])

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """The router's own view of each replica, by id."""
        async with self.session.get(self.router.url + "/debug/replicas") as response:
            return {row["id"]: row for row in (await response.json())["replicas"]}


@asynccontextmanager
async def fleet(
    count: int, *, engine_flags: Sequence[str] = (), router_flags: Sequence[str] = ()
) -> AsyncIterator[Fleet]:
    """Start `count` engines and a router, ready; end all of them whatever happens."""
    engines: list[Program] = []
    router: Program | None = None
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        try:
            starts = [start_engine(*engine_flags) for _ in range(count)]
            engines += await asyncio.gather(*starts)
            router = await start_router(engines, *router_flags)
            built = Fleet(engines, router, session, tuple(engine_flags))
            await until(lambda: _is_ready(session, built.router.url))
            yield built
        finally:
            for program in filter(None, (router, *engines)):
                await program.kill()


async def until(claim: Callable[[], Awaitable[bool]], within_s: float = 15.0) -> None:
    """Wait until `claim` holds. TimeoutError if it doesn't in time."""
    async with asyncio.timeout(within_s):
        while not await claim():  # noqa: ASYNC110  other processes give no event to wait for
            await asyncio.sleep(0.02)


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(url + "/readyz") as response:
        return response.status == 200
