"""Engines that fail in one chosen way, one model each, behind a router that is a real process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.processes import Program, start, until
from tests.support.proxy import Connection
from tests.support.raw_http import DONE, ROLE, STREAM_HEAD, chunk, event, json_reply, stream

MODEL = "m"
TOKENS = 5
ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}'
)
WHOLE_STREAM = stream(ROLE, *[event(f"t{i}") for i in range(TOKENS)], event("", '"stop"'), DONE)
BEGINNING = STREAM_HEAD + chunk(ROLE) + chunk(event("t0")) + chunk(event("t1"))
ABORTED = ANSWER.replace(b'"hello"', b'""').replace(b'"stop"', b'"abort"')
ABORTED_STREAM = stream(ROLE, event("", '"abort"'), DONE)
LONG_LINE = b"data: " + b"x" * 10_000_000
ERROR_EVENT = b'data: {"error":{"message":"EngineCore died","type":"server_error","code":500}}\n\n'
CHAT = "/v1/chat/completions"

Fault = Callable[[Connection, bool], Awaitable[None]]
"""Plays one reply; the flag says whether a stream was asked for. Returning closes."""


def status(line: bytes, extra: bytes = b"", body: bytes = b'{"error":{"message":"no"}}') -> Fault:
    async def play(connection: Connection, is_stream: bool) -> None:
        await connection.send(json_reply(body, line, extra))

    return play


def says(raw: bytes, raw_stream: bytes | None = None, then: str = "close") -> Fault:
    """Sends these bytes, then closes, resets or hangs."""

    async def play(connection: Connection, is_stream: bool) -> None:
        await connection.send(raw_stream if is_stream and raw_stream is not None else raw)
        if then == "hang":
            await connection.until_closed()
        elif then == "reset":
            # let what was sent arrive: a reset takes unread bytes with it
            await asyncio.sleep(0.1)
            connection.reset()

    return play


async def works(connection: Connection, is_stream: bool) -> None:
    await connection.send(WHOLE_STREAM if is_stream else json_reply(ANSWER))


async def works_slowly(connection: Connection, is_stream: bool) -> None:
    """Decodes until its client leaves."""
    if not is_stream:
        await connection.until_closed()
        return
    await connection.send(BEGINNING)
    while not connection.writer.is_closing():
        await connection.send(chunk(event("x" * 100)))
        await asyncio.sleep(0.01)


@dataclass(slots=True)
class FaultyEngine:
    """Answers probes well and generations with `fault`. `in_flight`: those not closed yet."""

    fault: Fault
    port: int = 0
    asked: int = 0
    in_flight: int = 0
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        self.port = self.server.sockets[0].getsockname()[1]

    async def close_port(self) -> None:
        """Refuse from now on; what is under way goes on."""
        assert self.server is not None
        self.server.close()

    async def stop(self) -> None:
        await self.close_port()
        for task in self.connections:
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while await self._answer(Connection(reader, writer)):
                    pass
        finally:
            self.connections.discard(task)
            writer.close()

    async def _answer(self, connection: Connection) -> bool:
        head, body = await connection.request()
        if head.startswith(b"GET /v1/models "):
            rows = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            await connection.send(json_reply(json.dumps(rows).encode()))
            return True
        if not head.startswith(b"POST /v1/"):
            await connection.send(json_reply(b"{}"))
            return True
        self.asked += 1
        self.in_flight += 1
        try:
            await self.fault(connection, b'"stream": true' in body)
        finally:
            self.in_flight -= 1
        return self.fault is works


@dataclass(slots=True)
class Answer:
    """What a client got. `text`: of all its tokens; `is_whole`: it ended as it should."""

    status: int
    body: bytes
    is_whole: bool = True

    @property
    def error(self) -> dict[str, Any] | None:
        lines = self.body.split(b"\n\n") if self.body.startswith((b"data:", b":")) else [self.body]
        for line in lines:
            with contextlib.suppress(ValueError):
                value = json.loads(line.removeprefix(b"data:"))
                if isinstance(value, dict) and "error" in value:
                    return dict(value["error"])
        return None


@dataclass(slots=True)
class Bed:
    """A router, its engines, and a client."""

    router: Program
    engines: list[FaultyEngine]
    session: aiohttp.ClientSession

    async def ask(self, *, is_stream: bool, prompt: str = "hello") -> Answer:
        body = {
            "model": MODEL,
            "stream": is_stream,
            "messages": [{"role": "user", "content": prompt}],
        }
        async with self.session.post(self.router.url + CHAT, json=body) as response:
            data = b""
            try:
                async for piece in response.content.iter_any():
                    data += piece
            except aiohttp.ClientPayloadError:
                return Answer(response.status, data, is_whole=False)
            return Answer(response.status, data)

    async def replicas(self) -> dict[str, dict[str, Any]]:
        async with self.session.get(self.router.url + "/debug/replicas") as response:
            return {row["id"]: row for row in (await response.json())["replicas"]}

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        async with self.session.get(self.router.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [
            line
            for line in lines
            if line.startswith((name + "{", name + " ")) and all(w in line for w in wanted)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    async def is_idle(self) -> bool:
        """Nothing is in flight, here or there."""
        here = [row["in_flight"] for row in (await self.replicas()).values()]
        return not any(here) and not any(engine.in_flight for engine in self.engines)


@asynccontextmanager
async def bed(
    *faults: Fault, settings: Sequence[str] = (), is_ready: bool = True
) -> AsyncIterator[Bed]:
    """Engines r1, r2, … with these faults behind a router that takes them in turn."""
    engines = [FaultyEngine(fault) for fault in faults]
    router: Program | None = None
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            for engine in engines:
                await engine.listen()
            flags = [f"--replica=id=r{n},url={e.url}" for n, e in enumerate(engines, 1)]
            for setting in (*QUICK, *settings):
                flags += ["--set", setting]
            router = await start("router.cli", "serve", "--port=0", *flags)
            made = Bed(router, engines, session)
            if is_ready:
                await until(lambda: _all_up(made))
            yield made
        finally:
            if router is not None:
                await router.kill()
            for engine in engines:
                await engine.stop()


QUICK = (
    "routing.policy=round-robin",
    "tokens.remote=false",
    "forward.first_byte_timeout_s=1.0",
    "forward.idle_timeout_s=1.0",
    "health.retry_interval_s=0.1",
    "health.interval_s=0.3",
    "health.breaker_failures=1000",
)


async def _all_up(made: Bed) -> bool:
    return all(row["is_healthy"] for row in (await made.replicas()).values())
