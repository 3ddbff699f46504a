"""Several routers in front of the same engines, and clients that take them in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from loadgen.client import Client, Exchange, Target
from loadgen.connection import open_pool
from loadgen.http import Origin
from loadgen.record import Record
from tests.support.processes import MODEL_DIR, Program, start, start_engine, until

LOOK_S = 0.05
TIMEOUT_S = 120.0


@dataclass(slots=True)
class Spread:
    """A plain balancer: each request to the next router that says it is ready.

    It looks every 50 ms, as a load balancer looks at /readyz, and shows as much of a `Client` as
    the load test's runner needs. `answered`: the router of each request id.
    """

    target: Target
    session: aiohttp.ClientSession
    clients: dict[str, Client] = field(default_factory=dict)
    ready: list[str] = field(default_factory=list)
    answered: dict[str, str] = field(default_factory=dict)
    _turn: int = 0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def add(self, url: str) -> None:
        """From now on it is asked whether it is ready."""
        pool = await self._stack.enter_async_context(open_pool(Origin(url), time.perf_counter))
        self.clients[url] = Client(pool, self.target, TIMEOUT_S)

    def drop(self, url: str) -> None:
        """It has ended."""
        del self.clients[url]
        self.ready = [other for other in self.ready if other != url]

    async def send(self, body: bytes, headers: Mapping[str, str]) -> Exchange:
        self._turn += 1
        url = self.ready[self._turn % len(self.ready)]
        exchange = await self.clients[url].send(body, headers)
        if exchange.request_id is not None:
            self.answered[exchange.request_id] = url
        return exchange

    async def watch(self) -> None:
        """Keep `ready` true until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        urls = list(self.clients)
        answers = await asyncio.gather(*(is_ready(self.session, url) for url in urls))
        found = [url for url, is_up in zip(urls, answers, strict=True) if is_up]
        self.ready = [url for url in found if url in self.clients] or self.ready

    async def aclose(self) -> None:
        await self._stack.aclose()


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    with suppress(aiohttp.ClientError, OSError):
        async with session.get(url + "/readyz") as response:
            return response.status == 200
    return False


@dataclass(slots=True)
class Bench:
    """Engines and routers as processes, and a balancer in front."""

    engines: list[Program]
    routers: list[Program]
    spread: Spread
    flags: Sequence[str]
    logs: Path | None = None

    async def start_router(self) -> Program:
        """One more; it gets requests once it is ready."""
        log = self.logs / f"{len(self.routers)}.log" if self.logs is not None else None
        router = await start_router_of(self.engines, *self.flags, log=log)
        self.routers.append(router)
        await self.spread.add(router.url)
        return router

    async def states(self) -> list[str]:
        """`warmgate_shared_state` of each router."""
        return [await shared_state(self.spread.session, one.url) for one in self.routers]


async def start_router_of(
    engines: Sequence[Program], *flags: str, log: Path | None = None
) -> Program:
    replicas = []
    for number, engine in enumerate(engines, 1):
        ready = engine.ready
        where = f"url={engine.url},events={ready['events_url']},replay={ready['replay_url']}"
        replicas += ["--replica", f"id=r{number},{where}"]
    fixed = ("--port", "0", "--tokenizer", str(MODEL_DIR))
    return await start("router.cli", "serve", *fixed, *replicas, *flags, log=log)


async def shared_state(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    [line] = [line for line in lines if line.startswith("warmgate_shared_state{")]
    return line.split('"')[1]


@asynccontextmanager
async def bench(
    engines: int,
    routers: int,
    *,
    engine_flags: Sequence[str],
    router_flags: Sequence[str] = (),
    logs: Path | None = None,
) -> AsyncIterator[Bench]:
    """All of it, ready; ended by process ids whatever happens. `logs`: a folder for what routers
    write to stderr."""
    started: list[Program] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        made: Bench | None = None
        try:
            started += await asyncio.gather(*(start_engine(*engine_flags) for _ in range(engines)))
            target = Target(started[0].url, str(started[0].ready["model"]))
            made = Bench(started, [], Spread(target, session), router_flags, logs)
            for _ in range(routers):
                await made.start_router()

            async def all_ready() -> bool:
                assert made is not None
                await made.spread.look()
                return len(made.spread.ready) == routers

            await until(all_ready, within_s=60)
            yield made
        finally:
            if made is not None:
                await made.spread.aclose()
            for program in (*(made.routers if made is not None else ()), *started):
                await program.kill()


def hit_rate(records: Sequence[Record]) -> float:
    """Of their prompt tokens, the share that engines reused."""
    total = sum(one.prompt_tokens or 0 for one in records)
    return sum(one.cached_tokens or 0 for one in records) / total if total else 0.0


def ttfts_ms(records: Sequence[Record]) -> Iterator[float]:
    """From when each was due."""
    for one in records:
        if one.first_token_s is not None:
            yield 1e3 * (one.first_token_s - one.scheduled_s)
