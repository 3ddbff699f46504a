"""Clients and engines that misbehave at random: nobody is deceived, nothing is left over."""

import asyncio
import contextlib
import random

from tests.support.proxy import Connection, Engine, connected, gateway, post, until
from tests.support.raw_http import DONE, LAST, ROLE, STREAM_HEAD, chunk, event, split_reply

WORDS = 20
WHOLE = ROLE + b"".join(event(f"word {number}") for number in range(WORDS)) + DONE


def moody(rng: random.Random):
    """Streams in random pieces; now and then it dies, resets, or answers nonsense."""
    raw = b"".join(chunk(part + b"\n\n") for part in WHOLE.split(b"\n\n")[:-1]) + LAST

    async def play(connection: Connection) -> None:
        while True:
            await connection.request()
            end = len(raw) if rng.random() < 0.7 else rng.randrange(len(raw))
            if rng.random() < 0.1:
                connection.reset()
                return
            await connection.send(STREAM_HEAD)
            at = 0
            while at < end:
                step = rng.choice([1, 7, 200, 5000])
                await connection.send(raw[at : min(end, at + step)])
                at += step
                await asyncio.sleep(0)
            if end < len(raw):
                if rng.random() < 0.5:
                    connection.reset()
                return

    return play


async def one(port: int, rng: random.Random) -> str:
    async with connected(port) as client:
        await client.send(post(extra=b"Connection: close\r\n"))
        if rng.random() < 0.15:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await client.reader.readexactly(rng.randrange(1000))
            return "left"
        raw = await client.reader.read(-1)
    status, _, body, whole = split_reply(raw)
    if status == 502:
        return "502"
    assert (status, whole) == (200, True)
    if body == WHOLE:
        return "whole"
    assert body.split(b"\n\n")[-2].startswith(b'data: {"error"')
    return "cut"


async def test_every_client_gets_all_or_an_error_and_all_load_returns_to_zero():
    rng = random.Random(7)
    engines = [Engine(moody(rng)) for _ in range(3)]
    async with gateway(*engines) as app:
        results: list[str] = []
        for _ in range(6):
            asks = [one(app.port, rng) for _ in range(40)]
            results += await asyncio.gather(*asks)
            rng.shuffle(app.replicas)
        assert set(results) >= {"whole", "cut", "left"}
        await until(lambda: app.in_flight == 0)
        pool = app.forwarder.pool
        await until(lambda: pool.open_connections == pool.idle_connections)
        booked = sum(1 for call, _ in app.notes.calls if call == "trying")
        failed = sum(1 for call, _ in app.notes.calls if call == "failed")
        assert booked - failed <= len(app.reports) + app.cancelled
