"""`serve --processes 3`: one port, one load, and a process that is killed comes back."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.faults import CHAT, QUICK, FaultyEngine, works, works_slowly
from tests.support.processes import start, until
from tests.support.responses_engine import MODEL, PATH, ResponsesEngine

MANY = 40
PACE_S = 0.05
"""Between two requests of a client: without a pause they leave no core to a process that starts."""
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


@asynccontextmanager
async def three_processes(*faults, policy="least-loaded", more=()):
    engines = [FaultyEngine(fault) for fault in faults]
    for engine in engines:
        await engine.listen()
    flags = [f"--replica=id=r{n},url={e.url}" for n, e in enumerate(engines, 1)]
    flags += [flag for one in (*QUICK, f"routing.policy={policy}") for flag in ("--set", one)]
    router = await start("router.cli", "serve", "--port=0", "--processes=3", *flags, *more)
    # a connection of its own for each request: the kernel spreads connections
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    try:
        async with aiohttp.ClientSession(router.url, connector=connector) as session:
            await until(lambda: all_ready(session))
            yield router, session
            if router.process.returncode is None:
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
        # the kernel deals them out by chance: so many that none of three is left without
        streams = [await session.post(CHAT, json=BODY) for _ in range(MANY)]
        os.kill(router.ready["processes"][0], signal.SIGKILL)

        async def dead_ones_gone():
            counts = set()
            for _ in range(12):
                try:
                    counts.add(sum(await loads(session)))
                except aiohttp.ClientError:
                    return False
            return len(counts) == 1 and counts.pop() < MANY

        await until(dead_ones_gone)

        async def three_again():
            return len(psutil.Process(router.process.pid).children()) == 3

        await until(three_again)
        await until(lambda: all_ready(session))
        for stream in streams:
            stream.close()


async def test_the_admin_port_speaks_for_all_of_them_whatever_becomes_of_one():
    more = ("--set=listen.admin_port=0",)
    async with three_processes(works_slowly, works_slowly, more=more) as (router, session):
        admin = router.ready["admin_url"]

        async def value(name):
            async with session.get(admin + "/metrics") as response:
                samples = [
                    sample
                    for family in text_string_to_metric_families(await response.text())
                    for sample in family.samples
                    if sample.name == name
                ]
            return sum(sample.value for sample in samples)

        streams = [await session.post(CHAT, json=BODY) for _ in range(12)]
        assert await value("warmgate_replica_in_flight") == 12
        async with session.get(admin + "/debug/replicas") as response:
            processes = (await response.json())["processes"]
        assert [process["pid"] for process in processes] == router.ready["processes"]
        for stream in streams:
            stream.close()

        async def all_counted():
            return await value("warmgate_requests_total") == 12

        await until(all_counted)
        os.kill(router.ready["processes"][1], signal.SIGKILL)

        async def another_has_its_place():
            async with session.get(admin + "/debug/replicas") as response:
                pids = [process["pid"] for process in (await response.json())["processes"]]
            return len(pids) == 3 and pids != router.ready["processes"]

        await until(another_has_its_place)
        assert await value("warmgate_requests_total") == 12
        async with session.get(admin + "/readyz") as response:
            assert response.status == 200
        explained = await session.post(admin + "/debug/explain", json=BODY)
        assert (await explained.json())["policy"] == "least-loaded"


async def test_a_wrong_setting_ends_it_at_once():
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "router.cli",
            "serve",
            "--processes=2",
            "--set=index.mode=local",
            "--set=events.bind=tcp://*:1",
        ),
        stderr=asyncio.subprocess.PIPE,
    )
    _, text = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"events.bind" in text


async def is_replaced(router, pid):
    running = psutil.Process(router.process.pid).children()
    return len(running) == 4 and pid not in {child.pid for child in running}


@pytest.mark.timeout(180)  # it starts seven processes, three of them one after the other
async def test_a_rolling_restart_of_all_processes_fails_no_request():
    async with three_processes(works, works) as (router, session):
        first = set(router.ready["processes"])
        statuses: list[int | str] = []
        is_over = asyncio.Event()

        async def keep_asking():
            while not is_over.is_set():
                try:
                    async with session.post(CHAT, json=BODY) as response:
                        body = await response.read()
                        statuses.append(200 if response.status == 200 else body.decode())
                except (aiohttp.ClientError, OSError) as exc:
                    statuses.append(repr(exc))
                await asyncio.sleep(PACE_S)

        clients = [asyncio.create_task(keep_asking()) for _ in range(16)]
        for pid in first:
            before = len(statuses)
            os.kill(pid, signal.SIGTERM)
            await until(partial(is_replaced, router, pid), within_s=50)
            await until(lambda: all_ready(session), within_s=50)
            assert len(statuses) > before
        is_over.set()
        await asyncio.gather(*clients)
        assert set(statuses) == {200}
        pids = {child.pid for child in psutil.Process(router.process.pid).children()}
        assert not first & pids
        assert router.ready["index"] in pids


async def test_connections_that_wait_for_a_process_that_dies_are_served_by_the_next():
    async with three_processes(works, works) as (router, session):
        victim = router.ready["processes"][0]
        asks: list[asyncio.Task[int]] = []

        async def some_wait_for_it():
            # it accepts no more, but the kernel goes on giving it its share
            os.kill(victim, signal.SIGSTOP)
            asks[:] = [asyncio.create_task(ask(session)) for _ in range(30)]
            if (await asyncio.wait(asks, timeout=1.0))[1]:
                return True
            os.kill(victim, signal.SIGCONT)  # it had not begun: a neighbour answered for it
            return False

        await until(some_wait_for_it, within_s=30)
        os.kill(victim, signal.SIGKILL)
        assert await asyncio.wait_for(asyncio.gather(*asks), 30) == [200] * 30


async def ask(session):
    async with session.post(CHAT, json=BODY) as response:
        await response.read()
        return response.status


async def test_a_supervisor_that_is_killed_leaves_nothing_in_memory_for_long():
    folder = None
    async with three_processes(works) as (router, _):
        for child in psutil.Process(router.process.pid).children():
            flags = [flag for flag in child.cmdline() if flag.startswith("--set=shared.board=")]
            folder = os.path.dirname(flags[0].rpartition("=")[2])
        assert folder is not None
        assert Path(folder).is_dir()  # noqa: ASYNC240
        children = psutil.Process(router.process.pid).children()
        await router.kill()

        async def orphans_ended():
            return not any(child.is_running() for child in children)

        await until(orphans_ended)
        assert Path(folder).is_dir()  # noqa: ASYNC240
        async with three_processes(works):
            assert not Path(folder).exists()  # noqa: ASYNC240


async def test_a_response_that_one_process_saw_is_found_by_all_without_redis():
    engines = [ResponsesEngine() for _ in range(3)]
    for engine in engines:
        await engine.listen()
    flags = [f"--replica=id=r{n},url={e.url}" for n, e in enumerate(engines, 1)]
    settings = ("routing.policy=round-robin", "tokens.remote=false")
    flags += [flag for one in settings for flag in ("--set", one)]
    router = await start("router.cli", "serve", "--port=0", "--processes=3", *flags)
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    try:
        async with aiohttp.ClientSession(router.url, connector=connector) as session:
            await until(lambda: all_ready(session))
            name = None
            for turn in range(24):
                body = {"model": MODEL, "input": str(turn), "previous_response_id": name}
                async with session.post(PATH, json=body) as reply:
                    assert reply.status == 200
                    name = (await reply.json())["id"]
            # what a process noted stays known when it is killed
            for pid in router.ready["processes"]:
                os.kill(pid, signal.SIGKILL)
            await until(lambda: all_back(session))
            for _ in range(12):
                async with session.get(f"{PATH}/{name}") as reply:
                    assert reply.status == 200
                    assert reply.headers["x-warmgate-reason"] == "kept"
        assert await router.stop() == 0
    finally:
        await router.kill()
        for engine in engines:
            await engine.stop()


async def all_back(session):
    try:
        return await all_ready(session)
    except aiohttp.ClientError:
        return False
