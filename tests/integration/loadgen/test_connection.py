"""Connections: used again, given up, never mixed up; on both event loops."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
import uvloop

from loadgen.connection import KEEP_ALIVE_S, Disconnected, open_pool
from loadgen.http import Origin, ProtocolError

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Collected:
    def __init__(self, enough: int | None = None) -> None:
        self.data = b""
        self.status = 0
        self._enough = enough

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status

    def body(self, at: float, data: bytes) -> bool:
        self.data += data
        return self._enough is not None and len(self.data) >= self._enough


class Listener:
    def __init__(self) -> None:
        self.port = 0
        self.connections = 0


@asynccontextmanager
async def listening(play: Play) -> AsyncIterator[Listener]:
    found = Listener()
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(4)
                await play(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.05)


def says(data: bytes, is_last: bool = False) -> Play:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if is_last:
            writer.close()

    return play


async def asked(play: Play, times: int = 1, clock: Callable[[], float] = time.perf_counter):
    async with (
        listening(play) as listener,
        open_pool(Origin(f"http://127.0.0.1:{listener.port}"), clock) as pool,
    ):
        found = []
        for _ in range(times):
            collected = Collected()
            await asyncio.wait_for(pool.post("/", {}, b"body", collected), 10)
            found.append((collected.status, collected.data))
        return found, listener.connections


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connection_is_used_again_on_either_loop(loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        answers, connections = runner.run(asked(says(ANSWER), 3))
    assert answers == [(200, b"ok")] * 3
    assert connections == 1


async def test_connection_the_server_closes_is_not_used_again():
    closing = ANSWER.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    answers, connections = await asked(says(closing, is_last=True), 3)
    assert answers == [(200, b"ok")] * 3
    assert connections == 3


async def test_connection_idle_for_long_is_not_trusted():
    now = iter(n * (KEEP_ALIVE_S + 1) for n in range(1000))
    _, connections = await asked(says(ANSWER), 2, lambda: next(now))
    assert connections == 2


async def test_body_without_a_length_ends_with_the_connection():
    answers, _ = await asked(says(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", is_last=True))
    assert answers == [(200, b"until the end")]


async def test_cut_body_is_a_lost_connection():
    with pytest.raises(Disconnected, match="inside the response"):
        await asked(says(ANSWER[:-1], is_last=True))


async def test_no_http_is_a_protocol_error():
    with pytest.raises(ProtocolError):
        await asked(says(b"220 smtp ready\r\n\r\n"))


async def test_given_up_answer_is_never_taken_for_the_next_one():
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", ANSWER]

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop(0))

    async with (
        listening(play) as listener,
        open_pool(Origin(f"http://127.0.0.1:{listener.port}"), time.perf_counter) as pool,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.post("/", {}, b"body", Collected())
        collected = Collected()
        await asyncio.wait_for(pool.post("/", {}, b"body", collected), 10)
    assert collected.data == b"ok"
    assert listener.connections == 2


async def test_rest_after_the_end_is_drained_without_waiting_for_it():
    """[DONE] came; the last chunk comes later, and the connection is good again then."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
    rest = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await rest.wait()
        writer.write(b"0\r\n\r\n")

    async with (
        listening(play) as listener,
        open_pool(Origin(f"http://127.0.0.1:{listener.port}"), time.perf_counter) as pool,
    ):
        first = Collected(enough=2)
        await asyncio.wait_for(pool.post("/", {}, b"body", first), 10)
        assert not rest.is_set()
        rest.set()
        async with asyncio.timeout(10):
            while not pool._idle:  # noqa: ASYNC110  (bytes on a socket)
                await asyncio.sleep(0.01)
        await pool.post("/", {}, b"body", Collected(enough=2))
    assert (first.data, listener.connections) == (b"ok", 1)
