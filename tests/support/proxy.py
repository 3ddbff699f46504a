"""Engines that misbehave on purpose, a gateway of nothing but a Forwarder, bare clients."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aiohttp import HttpVersion, HttpVersion11, web
from multidict import CIMultiDict

from router.errors import RouterError
from router.proxy.client import Client, SentResponse
from router.proxy.exchange import Errand, Exchange
from router.proxy.forwarder import Forwarder
from router.proxy.head import Heads
from router.proxy.headers import Ours, ours_of
from router.proxy.reply import Limits, Reply
from router.proxy.upstream import Upstream
from router.replicas.replica import Replica

DATA = Path(__file__).resolve().parent.parent / "data" / "http"
PATH = "/v1/chat/completions"
QUICK = Limits(connect_timeout_s=1.0, first_byte_timeout_s=5.0, idle_timeout_s=5.0)


def capture(name: str) -> bytes:
    """A real engine's reply, head and all, as it came over the wire."""
    return (DATA / f"{name}.response.raw").read_bytes()


def event(text: str, finish: str = "null") -> bytes:
    """One event of a chat stream."""
    return (
        b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
        b'{"content":"%b"},"finish_reason":%b}]}\n\n' % (text.encode(), finish.encode())
    )


ROLE = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes) -> bytes:
    """A whole reply, one event per chunk."""
    return STREAM_HEAD + b"".join(chunk(each) for each in events) + LAST


def json_reply(body: bytes, status: bytes = b"200 OK", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body),
        body,
    )


def split_reply(raw: bytes) -> tuple[int, dict[str, str], bytes, bool]:
    """Status, headers (lower case), decoded body, and whether the body was whole."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") == "chunked":
        return (status, headers, *dechunk(body))
    whole = "content-length" not in headers or len(body) == int(headers["content-length"])
    return status, headers, body, whole


def dechunk(data: bytes) -> tuple[bytes, bool]:
    """A second, plainer decoder than the one under test."""
    body = b""
    while data:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        if size == 0:
            return body, data == b"\r\n"
        body, data = body + data[:size], data[size + 2 :]
    return body, False


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for something that happens on the loop."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("did not happen in time")
        await asyncio.sleep(0.002)


# ---- an exchange without sockets


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.is_aborted = False
        self.is_reading = True  # type: ignore[assignment,method-assign]

    def write(self, data: Any) -> None:
        self.written += data
        self.writes += 1

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.is_reading = False  # type: ignore[assignment,method-assign]

    def resume_reading(self) -> None:
        self.is_reading = True  # type: ignore[assignment,method-assign]


@dataclass
class FakeProtocol:
    writing_paused: bool = False


@dataclass
class FakeRequest:
    """As much of a request as the data path reads."""

    method: str = "POST"
    path: str = PATH
    version: HttpVersion = HttpVersion11
    keep_alive: bool = True
    raw_headers: tuple[tuple[bytes, bytes], ...] = ()
    transport: FakeTransport = field(default_factory=FakeTransport)
    protocol: FakeProtocol = field(default_factory=FakeProtocol)

    @property
    def headers(self) -> CIMultiDict[str]:
        return CIMultiDict((k.decode("latin-1"), v.decode("latin-1")) for k, v in self.raw_headers)

    def as_request(self) -> web.BaseRequest:
        return cast(web.BaseRequest, self)


@dataclass
class Notes:
    """A Listener that remembers."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    errors: list[RouterError] = field(default_factory=list)

    def trying(self, replica: Replica) -> None:
        self.calls.append(("trying", replica.id))

    def sent(self, replica: Replica) -> None:
        """What went out is looked at where it comes in."""

    def failed(self, replica: Replica, error: RouterError) -> None:
        self.calls.append(("failed", replica.id))
        self.errors.append(error)

    def headers(self, replica: Replica) -> Ours:
        return ours_of([("x-warmgate-replica", replica.id), ("x-request-id", "ours")])

    def first_byte(self, replica: Replica, status: int, start: bytes) -> None:
        self.calls.append(("first_byte", replica.id))


@dataclass
class Spliced:
    """What became of a reply that was fed piece by piece."""

    exchange: Exchange
    request: FakeRequest
    engine: FakeTransport
    notes: Notes

    @property
    def sent(self) -> bytes:
        return bytes(self.request.transport.written)


async def splice(
    pieces: Sequence[bytes],
    request: FakeRequest | None = None,
    limits: Limits = QUICK,
    *,
    then_lost: bool = False,
    notes: Notes | None = None,
) -> Spliced:
    """Feed an engine's bytes to an exchange in the given pieces; `then_lost`: it closes after."""
    request = request or FakeRequest()
    notes = notes or Notes()
    errand = Errand(
        client=Client(request.as_request(), limits.high_water_bytes),
        method=request.method,
        path=request.path,
        listener=notes,
        limits=limits,
        clock=time.monotonic,
        heads=Heads(),
        sent_heads={},
    )
    exchange = Exchange(errand, Replica("r1", "http://engine"))
    upstream = Upstream("http://engine", lambda _: None)
    engine = FakeTransport()
    upstream.connection_made(engine)
    run = asyncio.create_task(exchange.run(upstream, b"", b""))
    await asyncio.sleep(0)
    for piece in pieces:
        if exchange.is_over:
            break
        upstream.data_received(piece)
    if then_lost and not exchange.is_over:
        upstream.connection_lost(None)
    if not exchange.is_over:
        run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    return Spliced(exchange, request, engine, notes)


# ---- engines and clients with sockets

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
