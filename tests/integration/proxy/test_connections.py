"""Connections to engines: kept, reused, never trusted."""

import asyncio
import dataclasses
import ssl
import subprocess
from pathlib import Path

import pytest

from router.proxy.forwarder import Forwarder
from router.proxy.pool import parse_origin
from router.replicas.replica import Replica
from tests.support.proxy import (
    Connection,
    Engine,
    always,
    ask,
    connected,
    gateway,
    post,
    replies,
    until,
)
from tests.support.raw_http import json_reply
from tests.support.spliced import QUICK

GOOD = json_reply(b"{}")


async def test_connections_are_reused_last_in_first_out():
    engine = Engine(always(GOOD))
    async with gateway(engine) as app:
        for _ in range(5):
            assert (await ask(app.port))[0] == 200
        assert engine.accepted == 1
        assert app.forwarder.pool.idle_connections == 1


async def test_there_is_no_cap_on_connections():
    gate = asyncio.Event()

    async def wait(connection: Connection) -> None:
        await connection.request()
        await gate.wait()
        await connection.send(GOOD)
        await connection.until_closed()

    engine = Engine(wait)
    # no cap is the claim; how soon 150 connections are made is not
    limits = dataclasses.replace(
        QUICK, max_idle_connections=16, connect_timeout_s=15.0, first_byte_timeout_s=15.0
    )
    async with gateway(engine, limits=limits) as app:
        asks = [asyncio.create_task(ask(app.port)) for _ in range(150)]
        await until(lambda: engine.accepted == 150)
        gate.set()
        assert {(await each)[0] for each in asks} == {200}
        await until(lambda: app.forwarder.pool.open_connections == 16)


async def test_a_connection_that_the_engine_closed_is_not_handed_out():
    engine = Engine(replies(GOOD))
    async with gateway(engine) as app:
        for turn in range(3):
            assert (await ask(app.port))[0] == 200
            await until(lambda: app.forwarder.pool.open_connections == 0)
            assert engine.accepted == turn + 1
        assert app.notes.errors == []


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_stale_connection_is_replaced_at_once_on_the_same_replica(how):
    """The engine closes an idle connection in the moment in which we write to it."""

    async def die_on_second_request(connection: Connection) -> None:
        await connection.request()
        await connection.send(GOOD)
        await connection.request()
        if how == "reset":
            connection.reset()

    engine = Engine(die_on_second_request, always(GOOD))
    async with gateway(engine) as app:
        assert (await ask(app.port))[0] == 200
        assert (await ask(app.port))[0] == 200
        assert engine.accepted == 2
        assert app.notes.errors == []
        assert [report.tries for report in app.reports] == [1, 1]


async def test_a_fresh_connection_that_dies_is_not_tried_again():
    async def die(connection: Connection) -> None:
        await connection.request()

    engine = Engine(die)
    async with gateway(engine) as app:
        assert (await ask(app.port))[0] == 502
        assert engine.accepted == 1


@pytest.mark.parametrize(
    "reply",
    [
        GOOD + b"more than was announced",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nx",
    ],
)
async def test_a_connection_that_is_not_clean_is_closed(reply):
    engine = Engine(always(reply))
    async with gateway(engine) as app:
        assert (await ask(app.port))[2] == b"{}"
        await until(lambda: app.forwarder.pool.open_connections == 0)


async def test_bytes_that_nobody_asked_for_close_an_idle_connection():
    speak = asyncio.Event()

    async def chatter(connection: Connection) -> None:
        await connection.request()
        await connection.send(GOOD)
        await speak.wait()
        await connection.send(GOOD)
        await connection.until_closed()

    engine = Engine(chatter)
    async with gateway(engine) as app:
        assert (await ask(app.port))[0] == 200
        speak.set()
        await until(lambda: app.forwarder.pool.open_connections == 0)


async def test_idle_connections_are_dropped_after_a_while():
    limits = dataclasses.replace(QUICK, max_idle_s=0.1)
    async with gateway(Engine(always(GOOD)), limits=limits) as app:
        assert (await ask(app.port))[0] == 200
        await until(lambda: app.forwarder.pool.open_connections == 0)


async def test_closing_the_forwarder_closes_idle_connections():
    engine = Engine(always(GOOD))
    async with gateway(engine) as app:
        assert (await ask(app.port))[0] == 200
        await app.forwarder.aclose()
        assert app.forwarder.pool.open_connections == 0
        await until(lambda: engine.closed == 1)


async def test_closing_the_forwarder_ends_what_is_under_way():
    async def hang(connection: Connection) -> None:
        await connection.request()
        await connection.until_closed()

    engine, other = Engine(hang), Engine(always(GOOD))
    async with gateway(engine, other) as app:
        asked = asyncio.create_task(ask(app.port))
        await until(lambda: len(engine.busy) == 1)
        await app.forwarder.aclose()
        assert (await asked)[0] == 502
        assert other.accepted == 0
        assert app.forwarder.pool.open_connections == 0


async def test_path_query_prefix_and_rank_reach_the_engine():
    seen: list[tuple[bytes, bytes]] = []

    async def listen(connection: Connection) -> None:
        seen.append(await connection.request())
        await connection.send(GOOD)

    engine = Engine(listen)
    async with gateway(engine) as app:
        url = f"http://localhost:{engine.port}/base"
        app.replicas = [Replica("r1", url, rank=3)]
        body = b'{ "odd" :\t"spacing \xc3\xa9" }'
        message = post(
            body, path="/v1/completions?a=b%20c", extra=b"Connection: close\r\nX-A: 1\r\n"
        )
        assert (await ask(app.port, message))[0] == 200
        head, received = seen[0]
        assert received == body
        assert head.startswith(b"POST /base/v1/completions?a=b%20c HTTP/1.1\r\nHost: localhost:")
        assert b"X-data-parallel-rank: 3\r\n" in head
        assert b"X-A: 1\r\n" in head


async def test_a_large_body_arrives_whole():
    sizes: list[int] = []

    async def measure(connection: Connection) -> None:
        sizes.append(len((await connection.request())[1]))
        await connection.send(GOOD)

    async with gateway(Engine(measure)) as app:
        message = post(b"x" * 20_000_000, extra=b"Connection: close\r\n")
        assert (await ask(app.port, message))[0] == 200
        assert sizes == [20_000_000]


async def test_requests_on_one_client_connection_follow_each_other():
    async with gateway(Engine(always(GOOD))) as app, connected(app.port) as client:
        for _ in range(3):
            await client.send(post())
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"connection" not in head.lower()
            assert await client.reader.readexactly(2) == b"{}"


def self_signed(folder: Path) -> tuple[Path, Path]:
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return cert, key


async def test_https_engines_are_reached_and_verified(tmp_path):
    cert, key = self_signed(tmp_path)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(cert, key)
    engine = Engine(always(json_reply(b"{}")))
    async with gateway() as app:
        await engine.start(ssl=served)
        app.replicas = [Replica("r1", f"https://localhost:{engine.port}")]
        assert (await ask(app.port))[0] == 502
        trusting = ssl.create_default_context(cafile=str(cert))
        await app.forwarder.aclose()
        assert app.forwarder.pool.open_connections == 0
        app.forwarder = Forwarder(QUICK, ssl_context=trusting)
        assert (await ask(app.port))[0] == 200
        await app.forwarder.aclose()
        await engine.stop()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "x", "", "http://h:port"])
def test_what_is_no_http_url_is_refused(url):
    with pytest.raises(ValueError, match=r".+"):
        parse_origin(url)


def test_an_origin_has_its_default_port_and_prefix():
    origin = parse_origin("https://user@h/a/b/")
    assert (origin.host, origin.port, origin.is_tls) == ("h", 443, True)
    assert (origin.prefix, origin.authority) == ("/a/b", b"h")
    assert parse_origin("http://[::1]:8000").host == "::1"
