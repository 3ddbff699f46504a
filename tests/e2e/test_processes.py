"""`serve --processes 3`: one port, one load, and a process that is killed comes back."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import aiohttp
import psutil

from tests.support.faults import CHAT, QUICK, FaultyEngine, works_slowly
from tests.support.processes import start, until

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


@asynccontextmanager
async def three_processes(*faults, policy="least-loaded"):
    engines = [FaultyEngine(fault) for fault in faults]
    for engine in engines:
        await engine.listen()
    flags = [f"--replica=id=r{n},url={e.url}" for n, e in enumerate(engines, 1)]
    flags += [flag for one in (*QUICK, f"routing.policy={policy}") for flag in ("--set", one)]
    router = await start("router.cli", "serve", "--port=0", "--processes=3", *flags)
    # a connection of its own for each request: the kernel spreads connections
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    try:
        async with aiohttp.ClientSession(router.url, connector=connector) as session:
            await until(lambda: all_ready(session))
            yield router, session
            assert await router.stop() == 0
    finally:
        await router.kill()
        for engine in engines:
            await engine.stop()


async def all_ready(session):
    async def is_ready():
        async with session.get("/readyz") as response:
            return response.status == 200

    return all(await asyncio.gather(*(is_ready() for _ in range(24))))


async def loads(session):
    """Requests in flight per replica, as whichever process answers sees them."""
    async with session.get("/debug/replicas") as response:
        return [
            row["load"]["waiting"] + row["load"]["running"]
            for row in (await response.json())["replicas"]
        ]


async def test_every_process_knows_what_all_have_sent():
    async with three_processes(works_slowly, works_slowly) as (_, session):
        streams = [await session.post(CHAT, json=BODY) for _ in range(12)]
        seen = {tuple(await loads(session)) for _ in range(12)}
        assert seen == {(6, 6)}
        for stream in streams:
            stream.close()

        async def idle():
            return {tuple(await loads(session)) for _ in range(12)} == {(0, 0)}

        await until(idle)


async def test_a_killed_process_takes_its_load_along_and_is_started_over():
    async with three_processes(works_slowly, works_slowly) as (router, session):
        streams = [await session.post(CHAT, json=BODY) for _ in range(12)]
        os.kill(router.ready["processes"][0], signal.SIGKILL)

        async def dead_ones_gone():
            counts = set()
            for _ in range(12):
                try:
                    counts.add(sum(await loads(session)))
                except aiohttp.ClientError:
                    return False
            return len(counts) == 1 and counts.pop() < 12

        await until(dead_ones_gone)

        async def three_again():
            return len(psutil.Process(router.process.pid).children()) == 3

        await until(three_again)
        await until(lambda: all_ready(session))
        for stream in streams:
            stream.close()


async def test_a_wrong_setting_ends_it_at_once():
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "router.cli",
            "serve",
            "--processes=2",
            "--set=events.bind=tcp://*:1",
        ),
        stderr=asyncio.subprocess.PIPE,
    )
    _, text = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"events.bind" in text
