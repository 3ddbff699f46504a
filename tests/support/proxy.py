"""Engines that misbehave on purpose, a gateway of nothing but a Forwarder, bare clients."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from router.errors import RouterError
from router.proxy.client import SentResponse
from router.proxy.forwarder import Forwarder
from router.proxy.reply import Limits, Reply
from router.replicas.replica import Replica
from tests.support.raw_http import PATH, split_reply
from tests.support.spliced import QUICK, Notes


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for something that happens on the loop."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("did not happen in time")
        await asyncio.sleep(0.002)


Script = Callable[["Connection"], Awaitable[None]]


class Connection:
    """An engine's end of one connection, for a script to play with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """The next request's head and body. Raises IncompleteReadError if the peer closed."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return head, await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_closed(self) -> None:
        """Wait for the peer to close."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Engine:
    """A server that plays one script per connection (the last script again and again)."""

    def __init__(self, *scripts: Script, name: str = "r1") -> None:
        self.name = name
        self.requests: list[tuple[bytes, bytes]] = []
        self.accepted = 0
        self.closed = 0
        self._scripts = scripts
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def start(self, ssl: Any = None) -> "Engine":
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=ssl, backlog=1024
        )
        return self

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def replica(self) -> Replica:
        return Replica(self.name, f"http://127.0.0.1:{self.port}")

    @property
    def busy(self) -> set[asyncio.Task[None]]:
        """Connections that are open."""
        return self._tasks

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await script(Connection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self.closed += 1
            writer.close()


def replies(*replies: bytes) -> Script:
    """Answer the requests of a connection in turn, then close it."""

    async def play(connection: Connection) -> None:
        for reply in replies:
            await connection.request()
            await connection.send(reply)

    return play


def always(reply: bytes) -> Script:
    """Answer every request with the same bytes."""

    async def play(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(reply)

    return play


class Gateway:
    """The least that a gateway is: reads a body, calls forward(), answers errors as JSON."""

    def __init__(self, replicas: Sequence[Replica], limits: Limits) -> None:
        self.replicas = list(replicas)
        self.forwarder = Forwarder(limits)
        self.notes = Notes()
        self.reports: list[Reply] = []
        self.in_flight = 0
        self.cancelled = 0
        self.port = 0
        self._runner: web.AppRunner

    async def start(self) -> "Gateway":
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self.forwarder.aclose()

    def client_protocols(self) -> list[Any]:
        """aiohttp's protocol objects, one per client that is connected."""
        server = self._runner.server
        assert server is not None
        return list(server.connections)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.in_flight += 1
        try:
            report = await self.forwarder.forward(request, body, self.replicas, self.notes)
        except RouterError as error:
            body_of_error = {"error": {"message": error.message, "code": error.code}}
            return web.json_response(body_of_error, status=error.status)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        self.reports.append(report)
        return SentResponse(
            report.status, keeps_alive=report.keeps_alive, bytes_sent=report.bytes_sent
        )


@contextlib.asynccontextmanager
async def gateway(*engines: Engine, limits: Limits = QUICK) -> AsyncIterator[Gateway]:
    """Starts the engines (r1, r2, … in order of preference) and a gateway before them."""
    for number, engine in enumerate(engines, 1):
        engine.name = f"r{number}"
        await engine.start()
    app = await Gateway([engine.replica for engine in engines], limits).start()
    try:
        yield app
    finally:
        await app.stop()
        for engine in engines:
            await engine.stop()


def post(
    body: bytes = b"{}", path: str = PATH, extra: bytes = b"", version: bytes = b"1.1"
) -> bytes:
    return b"POST %b HTTP/%b\r\nHost: gateway\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        version,
        extra,
        len(body),
        body,
    )


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def ask(port: int, message: bytes | None = None) -> tuple[int, dict[str, str], bytes, bool]:
    """One request on its own connection, the reply read to the connection's end."""
    async with connected(port) as client:
        await client.send(message or post(extra=b"Connection: close\r\n"))
        raw = await asyncio.wait_for(client.reader.read(-1), 20)
    return split_reply(raw)
