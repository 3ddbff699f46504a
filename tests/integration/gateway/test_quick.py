"""Connections on which quick requests and others take turns."""

import asyncio
import json

import pytest

from router.gateway.limits import EdgeLimits
from router.gateway.server import EdgeServer
from tests.support.engines import chat_body, plain_engine
from tests.support.gateway import gateway
from tests.support.processes import until

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


def chat(body=None, extra=b""):
    body = chat_body() if body is None else body
    return CHAT + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture
async def pair():
    async with plain_engine() as engine, gateway([{"id": "r1", "url": engine.url}]) as served:
        yield served, engine


@pytest.fixture
async def served(pair):
    return pair[0]


@pytest.fixture
async def engine(pair):
    return pair[1]


class Client:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, data):
        self.writer.write(data)

    async def reply(self):
        """Status, headers, body."""
        async with asyncio.timeout(5):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:-2])
            body = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers, json.loads(body)

    async def is_closed(self):
        async with asyncio.timeout(5):
            return await self.reader.read() == b""


@pytest.fixture
async def client(served):
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield Client(reader, writer)
    writer.close()


async def test_a_body_may_come_in_pieces(client, engine):
    body = chat_body(pad="x" * 5000)
    data = chat(body)
    for piece in (data[:-3000], data[-3000:-1], data[-1:]):
        client.send(piece)
        await client.writer.drain()
        await asyncio.sleep(0)
    status, _, answer = await client.reply()
    assert (status, answer["echo"]) == (200, len(body))
    assert engine.requests[0][1] == body


async def test_pipelined_requests_are_answered_in_order(client, engine):
    bodies = [chat_body(pad="x" * size) for size in range(5)]
    client.send(b"".join([chat(bodies[0]), chat(bodies[1]), MODELS, *map(chat, bodies[2:])]))
    answers = [(await client.reply())[2] for _ in range(6)]
    assert [answer.get("echo") for answer in answers] == [
        *map(len, bodies[:2]),
        None,
        *map(len, bodies[2:]),
    ]
    assert [body for _, body in engine.requests] == bodies


async def test_each_request_has_its_own_headers(client, engine):
    for extra in (b"X-Mine: 1\r\n", b"X-Mine: 2\r\n", b"", b"X-Mine: 2\r\n"):
        client.send(chat(extra=extra))
        assert (await client.reply())[0] == 200
    assert [headers.get("X-Mine") for headers, _ in engine.requests] == ["1", "2", None, "2"]


async def test_others_come_in_between(client, served):
    for _ in range(2):
        for data in (chat(), MODELS, chat(extra=b"Expect: other\r\n"), chat(extra=b"A: \x80\r\n")):
            client.send(data)
            assert (await client.reply())[0] in (200, 417)
    assert served.runtime.in_flight() == 0


async def test_a_refusal_keeps_the_connection(client):
    for body, status in ((b"{", 400), (chat_body("absent"), 404), (chat_body(), 200)):
        client.send(chat(body))
        told, headers, answer = await client.reply()
        assert told == status
        assert headers["content-type"].startswith("application/json")
        assert headers["x-request-id"]
        assert ("error" in answer) == (status != 200)


async def test_a_refusal_before_the_whole_body_closes_the_connection(tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text("tenants: []\n")
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], tenants={"keys_file": str(keys)}) as served,
    ):
        host, port = served.url.removeprefix("http://").split(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        client.send(CHAT + b"Content-Length: 50\r\n\r\n{")
        status, headers, _ = await client.reply()
        assert (status, headers["connection"]) == (401, "close")
        client.send(b"x" * 49)
        assert await client.is_closed()
        client.writer.close()


async def test_a_client_that_leaves_in_its_body_leaves_nothing(client, served):
    client.send(CHAT + b"Content-Length: 50\r\n\r\n{")
    await until(lambda: has_begun(served))
    client.writer.close()
    await until(lambda: metric_is(served, 'outcome="client_gone"} 1.0'))
    assert served.runtime.in_flight() == 0


async def has_begun(served):
    return bool(served.server.connections) and any(
        connection._quick is not None for connection in served.server.connections
    )


async def metric_is(served, words):
    async with served.client.get("/metrics") as response:
        return words in await response.text()


async def test_a_connection_that_is_asked_again_is_not_idle():
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], keepalive_s=0.3) as served,
    ):
        host, port = served.url.removeprefix("http://").split(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 0.7:
            client.send(chat())
            assert (await client.reply())[0] == 200
        assert await client.is_closed()
        client.writer.close()


class Deaf(asyncio.Transport):
    """Takes what is written, for nobody."""

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        pass

    def is_closing(self):
        return False

    def close(self):
        pass

    abort = close


async def test_a_request_that_comes_with_its_connection_is_quick():
    answered: asyncio.Queue[str] = asyncio.Queue()

    async def answer(request):
        answered.put_nowait(request.path)
        return True

    async def handle(request):
        pytest.fail("aiohttp has read it")

    path = "/v1/chat/completions"
    server = EdgeServer(handle, EdgeLimits(), answer, (path.encode(),))
    connection = server()
    connection.connection_made(Deaf())
    for _ in range(3):
        connection.data_received(chat())
        async with asyncio.timeout(5):
            assert await answered.get() == path
    connection.connection_lost(None)
    await server.shutdown(1.0)
