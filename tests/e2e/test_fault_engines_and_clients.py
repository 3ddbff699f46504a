"""Faults that need more than one reply: ports that close, clients that leave, slow readers."""

import asyncio
import json
import socket
import time

import psutil
import pytest

from tests.support.faults import CHAT, MODEL, bed, says, works, works_slowly
from tests.support.processes import until


def message(*, is_stream):
    body = json.dumps(
        {
            "model": MODEL,
            "stream": is_stream,
            "messages": [{"role": "user", "content": "hello"}],
        }
    ).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def connect(run, data=b"", **options):
    host, port = run.router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), **options)
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_port_that_refuses_is_out_of_the_choice_and_seen_by_no_client(is_stream):
    async with bed(works, works) as run:
        await run.engines[0].stop()
        closed_at = time.monotonic()
        for _ in range(4):
            got = await run.ask(is_stream=is_stream)
            assert (got.status, got.error) == (200, None)

        async def is_out():
            return not (await run.replicas())["r1"]["is_healthy"]

        await until(is_out)
        assert time.monotonic() - closed_at < 3.0
        await until(run.is_idle)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_alone_behind_a_port_that_refuses_the_client_gets_an_error_at_once(is_stream):
    async with bed(works) as run:
        await run.engines[0].stop()
        got = await run.ask(is_stream=is_stream)
        assert got.error is not None
        assert (got.status, got.error["code"]) in [
            (502, "replica_unreachable"),
            (503, "no_replica_available"),
        ]
        await until(run.is_idle)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_engine_that_closes_idle_connections_costs_no_request(is_stream):
    async def answers_then_closes(connection, stream):
        await works(connection, stream)

    async with bed(answers_then_closes) as run:
        for _ in range(10):
            got = await run.ask(is_stream=is_stream)
            assert (got.status, got.error) == (200, None)
        await until(run.is_idle)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_requests_of_an_engine_that_was_told_to_stop_go_to_another(is_stream):
    # vLLM at SIGTERM: the port closes, requests in flight get no byte and no end
    limits = ("forward.first_byte_timeout_s=30", "forward.idle_timeout_s=30")
    async with bed(says(b"", then="hang"), works, settings=limits) as run:
        asking = [asyncio.create_task(run.ask(is_stream=is_stream)) for _ in range(2)]
        await until(lambda: _is(run.engines[0].in_flight == 1))
        await run.engines[0].close_port()
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*asking)
        assert [(got.status, got.error) for got in answers] == [(200, None)] * 2
        await until(run.is_idle)


async def test_a_reply_that_still_comes_is_let_come_though_the_port_is_closed():
    async with bed(works_slowly) as run:
        reader, writer = await connect(run, message(is_stream=True))
        await reader.read(100)
        await run.engines[0].close_port()
        until_then = time.monotonic() + 2.5
        while time.monotonic() < until_then:
            async with asyncio.timeout(2):
                assert await reader.read(4096)
        writer.close()
        await until(lambda: _is(run.engines[0].in_flight == 0))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_before_the_first_byte_ends_the_engines_work(is_stream):
    limits = ("forward.first_byte_timeout_s=30",)
    async with bed(says(b"", then="hang"), settings=limits) as run:
        _, writer = await connect(run, message(is_stream=is_stream))
        await until(lambda: _is(run.engines[0].in_flight == 1))
        writer.close()
        await until(run.is_idle)
        assert await run.metric("warmgate_requests_total", outcome="client_gone") == 1
        assert await run.metric("warmgate_replica_failures_total") == 0


async def test_a_client_that_leaves_mid_stream_ends_the_engines_work():
    async with bed(works_slowly) as run:
        reader, writer = await connect(run, message(is_stream=True))
        await reader.readuntil(b"t1")
        writer.close()
        await until(run.is_idle)
        assert await run.metric("warmgate_requests_total", outcome="client_gone") == 1


async def test_a_client_that_leaves_within_its_request_leaves_nothing():
    async with bed(works) as run:
        for part in (20, -5):
            _, writer = await connect(run, message(is_stream=True)[:part])
            writer.close()
        assert (await run.ask(is_stream=True)).error is None
        await until(run.is_idle)
        assert run.engines[0].asked == 1


async def test_a_slow_reader_holds_the_engine_back_and_little_memory():
    async def floods(connection, is_stream):
        event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 8000)
        await connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(20_000):
            await connection.send(b"%x\r\n%b\r\n" % (len(event), event))
            run.sent += len(event)
        await connection.send(b"0\r\n\r\n")

    class Counting:
        sent = 0

    run = Counting()
    async with bed(floods) as made:
        router = psutil.Process(made.router.process.pid)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", int(made.router.url.rpartition(":")[2])))
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        before = router.memory_info().rss
        writer.write(message(is_stream=True))
        for _ in range(20):
            assert await reader.read(100)
            await asyncio.sleep(0.1)
        assert run.sent < 40 * 2**20
        assert router.memory_info().rss - before < 16 * 2**20
        assert (await made.replicas())["r1"]["in_flight"] == 1
        writer.close()
        await until(made.is_idle)


async def _is(claim):
    return claim
