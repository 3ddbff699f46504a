"""Clients that leave, and clients that are slow."""

import asyncio
import dataclasses
import socket
from typing import cast

import pytest
from aiohttp import web

from router.proxy.client import SentResponse
from router.proxy.reply import Outcome
from router.replicas.replica import Replica
from tests.support.proxy import Connection, Engine, ask, connected, gateway, post, until
from tests.support.raw_http import LAST, ROLE, STREAM_HEAD, chunk, event
from tests.support.spliced import QUICK

EVENT = chunk(event("x" * 1000))


def stops_after(data: bytes):
    async def play(connection: Connection) -> None:
        await connection.request()
        await connection.send(data)
        await connection.until_closed()

    return play


@pytest.mark.parametrize("body", [b'{"stream":true}', b"{}"])
@pytest.mark.parametrize(
    "sent",
    [b"", STREAM_HEAD, STREAM_HEAD + chunk(ROLE), STREAM_HEAD + chunk(event("a"))],
    ids=["before headers", "before the first byte", "before the first token", "mid-stream"],
)
async def test_a_client_that_leaves_closes_the_engines_connection(sent, body):
    engine = Engine(stops_after(sent))
    async with gateway(engine) as app:
        async with connected(app.port) as client:
            await client.send(post(body))
            await until(lambda: engine.accepted == 1)
            if event("a") in sent:
                await client.reader.readuntil(b"\n\n\r\n")
        await until(lambda: engine.closed == 1)
        await until(lambda: app.in_flight == 0)
        assert app.cancelled == 1
        assert app.forwarder.pool.open_connections == 0


async def test_a_client_that_leaves_while_we_connect_leaves_nothing_behind():
    # a listener whose backlog is never accepted still completes handshakes, so fill it up
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    port = full.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    limits = dataclasses.replace(QUICK, connect_timeout_s=10.0)
    async with gateway(limits=limits) as app:
        app.replicas = [Replica("r1", f"http://127.0.0.1:{port}")]
        async with connected(app.port) as client:
            await client.send(post())
            await until(lambda: app.in_flight == 1)
        await until(lambda: app.in_flight == 0)
        assert app.cancelled == 1
        assert app.forwarder.pool.open_connections == 0
    for each in (full, *fillers):
        each.close()


async def flood(connection: Connection) -> None:
    """30 MB of events as fast as they are taken."""
    await connection.request()
    await connection.send(STREAM_HEAD)
    for _ in range(30):
        await connection.send(EVENT * 950)
    await connection.send(LAST)
    await connection.until_closed()


def stop_reading(client: Connection) -> None:
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    cast(asyncio.Transport, client.writer.transport).pause_reading()


def read_on(client: Connection) -> None:
    cast(asyncio.Transport, client.writer.transport).resume_reading()


async def test_a_slow_client_holds_the_engine_back_and_gets_everything():
    sent = 0

    async def counted(connection: Connection) -> None:
        nonlocal sent
        await connection.request()
        await connection.send(STREAM_HEAD)
        for _ in range(30):
            await connection.send(EVENT * 950)
            sent += 1
        await connection.send(LAST)
        await connection.until_closed()

    async with gateway(Engine(counted)) as app, connected(app.port) as client:
        stop_reading(client)
        await client.send(post(extra=b"Connection: close\r\n"))
        await until(lambda: sent > 0)
        await settled(lambda: sent)
        # what is not in the kernel's buffers has stayed with the engine
        assert sent < 25
        read_on(client)
        raw = await asyncio.wait_for(client.reader.read(-1), 20)
        assert raw.count(b"data: ") == 30 * 950
        assert raw.endswith(LAST)
        assert app.reports[0].outcome is Outcome.OK


async def settled(value) -> None:
    """Until a number has not changed for a while."""
    last, since = value(), asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < since + 0.3:
        await asyncio.sleep(0.02)
        if value() != last:
            last, since = value(), asyncio.get_running_loop().time()


async def test_a_slow_client_costs_a_bounded_buffer():
    biggest = 0
    async with gateway(Engine(flood)) as app, connected(app.port) as client:
        stop_reading(client)
        await client.send(post(extra=b"Connection: close\r\n"))
        await until(lambda: ("first_byte", "r1") in app.notes.calls)
        (protocol,) = app.client_protocols()
        for _ in range(50):
            biggest = max(biggest, protocol.transport.get_write_buffer_size())
            await asyncio.sleep(0.005)
        assert protocol.writing_paused
        # the mark, and one read of what the loop hands over at a time
        assert biggest < QUICK.high_water_bytes + 512 * 1024


async def test_a_client_that_never_reads_is_dropped():
    limits = dataclasses.replace(QUICK, client_stall_timeout_s=0.2)
    engine = Engine(flood)
    async with gateway(engine, limits=limits) as app, connected(app.port) as client:
        stop_reading(client)
        await client.send(post())
        await until(lambda: engine.closed == 1)
        await until(lambda: app.in_flight == 0)
        assert app.reports[0].outcome is Outcome.CLIENT_GONE


async def test_the_engine_is_not_blamed_for_a_slow_client():
    limits = dataclasses.replace(QUICK, idle_timeout_s=0.2)
    async with gateway(Engine(flood), limits=limits) as app, connected(app.port) as client:
        stop_reading(client)
        await client.send(post(extra=b"Connection: close\r\n"))
        await asyncio.sleep(0.6)
        read_on(client)
        raw = await asyncio.wait_for(client.reader.read(-1), 20)
        assert raw.endswith(LAST)
        assert app.reports[0].outcome is Outcome.OK


async def test_an_old_client_reads_to_the_end_of_the_connection():
    reply = STREAM_HEAD + chunk(event("a")) + LAST
    async with gateway(Engine(stops_after(reply))) as app:
        _, headers, body, _ = await ask(app.port, post(version=b"1.0"))
        assert body == event("a")
        assert headers["connection"] == "close"


async def test_aiohttp_still_is_as_the_client_side_needs_it():
    """What client.py relies on beyond the documented: one look at a live request."""
    seen: dict[str, bool] = {}

    async def handle(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        seen["flag"] = request.protocol.writing_paused is False
        transport.set_write_buffer_limits(high=0)
        request.protocol.pause_writing()
        seen["flag follows"] = request.protocol.writing_paused is True
        drain = asyncio.ensure_future(request.writer.drain())
        await asyncio.sleep(0)
        seen["drain waits"] = not drain.done()
        request.protocol.resume_writing()
        await drain
        transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        return SentResponse(200, keeps_alive=False, bytes_sent=2)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, _, body, whole = await ask(runner.addresses[0][1], post())
    await runner.cleanup()
    assert (body, whole) == (b"hi", True)
    assert seen == {"flag": True, "flag follows": True, "drain waits": True}
