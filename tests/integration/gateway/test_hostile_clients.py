"""Clients that mean no good, or only write odd HTTP."""

import asyncio
import gzip
import json
import zlib

import pytest
from backports import zstd

from tests.support.engines import chat_body, plain_engine
from tests.support.gateway import gateway

CHAT = "/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
async def pair():
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], listen={"max_body_bytes": 65536}) as served,
    ):
        yield served, engine


@pytest.fixture
async def served(pair):
    return pair[0]


@pytest.fixture
async def engine(pair):
    return pair[1]


async def exchange(served, data, *, close=False):
    """Everything that the gateway says to these bytes until it closes, at most 5 s."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    if close:
        writer.write_eof()
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: +5\r\n\r\nhello",
        b"Content-Length : 5\r\n\r\nhello",
        b" folded: x\r\n\r\n",
        b"X-\x00: y\r\n\r\n",
    ],
)
async def test_shapes_that_two_readers_would_read_differently_are_refused(served, engine, lines):
    raw = await exchange(served, HEAD + lines)
    assert raw[8:13] == b" 400 ", raw
    assert raw.count(b"HTTP/1.") == 1
    error = json.loads(raw.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "invalid_request"
    assert b"aiohttp" not in raw.partition(b"\r\n\r\n")[2]
    assert engine.requests == []


async def test_a_bad_chunk_never_reaches_a_replica(served, engine):
    raw = await exchange(
        served, HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"
    )
    assert raw[8:13] == b" 400 ", raw
    assert engine.requests == []


async def test_a_head_that_never_ends_is_cut_at_its_deadline():
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], listen={"head_timeout_s": 0.2}) as served,
    ):
        raw = await exchange(served, b"POST /v1/chat/completions HTTP/1.1\r\nHos")
        assert raw.startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_never_ends_is_refused_at_its_deadline():
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], listen={"body_timeout_s": 0.2}) as served,
    ):
        raw = await exchange(served, HEAD + b"Content-Length: 900\r\n\r\n{", close=False)
        assert raw.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in raw


async def test_a_head_that_is_too_long_is_refused(served):
    raw = await exchange(served, HEAD + b"X-Long: " + b"a" * 70_000 + b"\r\n\r\n")
    assert raw[8:13] == b" 400 ", raw


async def test_connections_of_one_client_are_bounded():
    listen = {"max_connections_per_client": 3}
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], listen=listen, is_ready=False) as served,
    ):
        host, port = served.url.removeprefix("http://").split(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        assert (await exchange(served, b"")).startswith(b"HTTP/1.1 429 ")
        held.pop()[1].close()
        async with asyncio.timeout(5):
            while not (await exchange(served, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(
                b"HTTP/1.0 200"
            ):
                pass
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd.compress)],
)
async def test_compressed_bodies_arrive_unpacked(served, engine, coding, pack):
    body = chat_body()
    headers = {"content-encoding": coding}
    async with served.client.post(CHAT, data=pack(body), headers=headers) as response:
        assert response.status == 200
    assert engine.requests[0][1] == body
    assert "content-encoding" not in {name.lower() for name in engine.requests[0][0]}


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
async def test_what_a_compressed_body_expands_to_is_bounded(served, engine, coding, pack):
    bomb = pack(chat_body(pad="x" * 50_000_000))
    assert len(bomb) < 65536
    headers = {"content-encoding": coding}
    async with served.client.post(CHAT, data=bomb, headers=headers) as response:
        assert response.status == 413
    assert engine.requests == []


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "unheard-of"])
async def test_a_body_that_is_not_encoded_as_it_says_is_the_clients_fault(served, coding):
    headers = {"content-encoding": coding}
    async with served.client.post(CHAT, data=b"\x00garbage" * 9, headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_an_upgrade_is_ignored(served, engine):
    body = chat_body()
    raw = await exchange(
        served,
        HEAD + b"Connection: upgrade, close\r\nUpgrade: websocket\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body,
    )
    assert raw.startswith(b"HTTP/1.1 200 ")
    sent = {name.lower() for name in engine.requests[0][0]}
    assert "upgrade" not in sent


@pytest.mark.parametrize("cut", [0, 3])
async def test_nothing_that_follows_an_upgrade_is_read_as_a_request(served, engine, cut):
    body = chat_body()
    asked = HEAD + b"Content-Length: %d\r\n" % len(body)
    first = asked + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n" + body
    raw = await exchange(served, first + (asked + b"\r\n" + body)[cut:])
    assert raw.count(b"HTTP/1.1 ") == 1
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close\r\n" in raw
    assert len(engine.requests) == 1


async def test_an_absolute_target_does_not_choose_where_it_goes(served, engine):
    body = chat_body()
    raw = await exchange(
        served,
        b"POST http://169.254.169.254/v1/chat/completions HTTP/1.1\r\nHost: 169.254.169.254\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
    )
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert engine.requests[0][0]["Host"] == engine.url.removeprefix("http://")


async def test_our_own_headers_from_outside_are_dropped(served, engine):
    headers = {"x-warmgate-replica": "r9", "TE": "trailers", "Proxy-Authorization": "x"}
    async with served.client.post(CHAT, data=chat_body(), headers=headers) as response:
        assert response.headers.getall("x-warmgate-replica") == ["r1"]
    sent = {name.lower() for name in engine.requests[0][0]}
    assert not sent & {"x-warmgate-replica", "te", "proxy-authorization"}


async def test_only_listed_origins_get_permission():
    origin = "https://chat.example"
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], listen={"cors_origins": [origin]}) as served,
    ):
        asked = {"Origin": origin, "Access-Control-Request-Headers": "authorization"}
        async with served.client.options(CHAT, headers=asked) as response:
            assert response.status == 204
            assert response.headers["access-control-allow-origin"] == origin
            assert response.headers["access-control-allow-headers"] == "authorization"
        for body in (chat_body(), b"{"):
            sent = {"Origin": origin}
            async with served.client.post(CHAT, data=body, headers=sent) as response:
                assert response.headers["access-control-allow-origin"] == origin
        sent = {"Origin": "https://evil.example"}
        async with served.client.post(CHAT, data=chat_body(), headers=sent) as response:
            assert "access-control-allow-origin" not in response.headers
        async with served.client.options(CHAT, headers=sent) as response:
            assert response.status == 405


async def test_a_client_that_asks_before_it_sends_its_body_is_told_to(served, engine):
    body = chat_body()
    async with served.client.post(CHAT, data=body, expect100=True) as response:
        assert response.status == 200
    assert engine.requests[0][1] == body
