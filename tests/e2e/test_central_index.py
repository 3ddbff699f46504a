"""`index.mode: shared` in real processes: one index for several routers, killed under load."""

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import aiohttp
import psutil

from tests.support.processes import MODEL_DIR, Program, start, start_engine, until

WORDS = "river stone lamp cloud garden wheel paper mirror winter copper letter engine".split()
ENGINE = ("--speed-up", "30")
BACK_S = 10.0
"""Longest time until all is EXACT again."""


def prompt(seed: int, words: int = 600) -> str:
    rng = Random(seed)
    return f"{seed}. " + " ".join(rng.choice(WORDS) for _ in range(words))


def replica_flags(engines: list[Program]) -> list[str]:
    flags: list[str] = []
    for number, engine in enumerate(engines, 1):
        events, replay = engine.ready["events_url"], engine.ready["replay_url"]
        text = f"id=r{number},url={engine.url},events={events},replay={replay}"
        flags += ["--replica", text]
    return flags


@asynccontextmanager
async def engines_running(count: int, *flags: str):
    engines: list[Program] = []
    try:
        starts = [start_engine(*ENGINE, *flags) for _ in range(count)]
        engines += await asyncio.gather(*starts)
        yield engines
    finally:
        for engine in engines:
            await engine.kill()


async def start_routers(engines: list[Program], *flags: str) -> Program:
    return await start(
        "router.cli", "serve", "--port=0", "--tokenizer", str(MODEL_DIR),
        *replica_flags(engines), "--set=index.mode=shared", "--set=listen.admin_port=0", *flags,
    )  # fmt: skip


@asynccontextmanager
async def two_processes(engines: list[Program], *flags: str):
    router = await start_routers(engines, "--processes=2", *flags)
    # a connection of its own for each request: the kernel spreads connections
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            await until(lambda: all_exact(session, router))
            yield router, session
            assert await router.stop() == 0
    finally:
        await router.kill()


async def debug(session: aiohttp.ClientSession, router: Program):
    async with session.get(router.ready["admin_url"] + "/debug/replicas") as response:
        return await response.json()


async def all_exact(session: aiohttp.ClientSession, router: Program) -> bool:
    """Does every router say of every replica that the index knows all of it?"""
    processes = (await debug(session, router))["processes"]
    trusts = {row["trust"] for process in processes for row in process["replicas"]}
    return len(processes) == 2 and trusts == {"exact"}


async def ask(session: aiohttp.ClientSession, router: Program, model: str, seed: int):
    """Status, reason and matched blocks."""
    body = {"model": model, "prompt": prompt(seed), "max_tokens": 4}
    async with session.post(router.url + "/v1/completions", json=body) as response:
        await response.read()
        headers = response.headers
        return (
            response.status,
            headers.get("x-warmgate-reason"),
            int(headers.get("x-warmgate-matched-blocks", -1)),
        )


async def metric(session: aiohttp.ClientSession, router: Program, name: str) -> float:
    async with session.get(router.ready["admin_url"] + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def test_what_one_process_has_sent_all_find_in_the_one_index():
    async with engines_running(2) as engines, two_processes(engines) as (router, session):
        model = engines[0].ready["model"]
        await ask(session, router, model, 0)

        async def learnt():
            rows = (await debug(session, router))["processes"]
            return all(sum(r["index_blocks"] for r in p["replicas"]) > 0 for p in rows)

        await until(learnt)
        for seed in range(1, 5):
            await ask(session, router, model, seed)

        async def found_by_all():
            got = [await ask(session, router, model, seed) for seed in range(1, 5)]
            return all(reason == "match" and matched > 30 for _, reason, matched in got)

        await until(found_by_all)
        whole = await debug(session, router)
        assert whole["index"]["routers"] == 2
        assert whole["index"]["pid"] == router.ready["index"]
        held = sum(row["index_blocks"] for row in whole["index"]["replicas"])
        assert held == await metric(session, router, "warmgate_index_blocks")
        assert await metric(session, router, "warmgate_event_frames_total") > 0
        # every question was answered by reading its memory: nobody had to ask it
        name = 'warmgate_index_questions_total{outcome="in_place"}'
        assert await metric(session, router, name) >= 5
        async with session.get(router.ready["admin_url"] + "/internal/snapshot") as response:
            assert len(await response.read()) > 8 * held


async def test_a_killed_index_fails_no_request_and_is_exact_again_within_ten_seconds():
    async with engines_running(2) as engines, two_processes(engines) as (router, session):
        model = engines[0].ready["model"]
        for seed in range(6):
            await ask(session, router, model, seed)
        got: list[tuple[int, str | None, int]] = []
        is_over = asyncio.Event()

        async def keep_asking(number: int) -> None:
            rng = Random(number)
            while not is_over.is_set():
                got.append(await ask(session, router, model, rng.randrange(6)))

        clients = [asyncio.create_task(keep_asking(number)) for number in range(4)]

        async def matching():
            return len(got) > 20 and all(reason == "match" for _, reason, _ in got[-8:])

        await until(matching)
        os.kill(router.ready["index"], signal.SIGKILL)
        killed_at = asyncio.get_running_loop().time()

        async def load_alone():
            return got[-1][1] == "unknown"

        await until(load_alone)

        async def exact_again():
            return await all_exact(session, router)

        await until(exact_again, within_s=BACK_S)
        took_s = asyncio.get_running_loop().time() - killed_at
        before = len(got)

        async def matching_again():
            return len(got) > before + 8 and all(reason == "match" for _, reason, _ in got[-8:])

        await until(matching_again)
        is_over.set()
        await asyncio.gather(*clients)
        assert {status for status, _, _ in got} == {200}
        assert took_s <= BACK_S
        assert await metric(session, router, 'warmgate_index_questions_total{outcome="down"}') > 0
        assert await metric(session, router, 'warmgate_decisions_total{model="') >= len(got)


async def test_an_index_that_hangs_is_gone_after_a_while_and_costs_no_request():
    async with engines_running(1) as engines, two_processes(engines) as (router, session):
        model = engines[0].ready["model"]
        await ask(session, router, model, 0)

        async def matching():
            return (await ask(session, router, model, 0))[1] == "match"

        await until(matching)
        os.kill(router.ready["index"], signal.SIGSTOP)
        try:

            async def load_alone():
                status, reason, _ = await ask(session, router, model, 0)
                assert status == 200
                return reason == "unknown"

            # what it knew is read until its silence is noticed
            await until(load_alone)
        finally:
            os.kill(router.ready["index"], signal.SIGCONT)
        await until(matching)


async def test_what_engines_do_not_replay_any_more_a_new_index_has_from_its_snapshot():
    short_memory = ("--buffer-steps", "3")
    settings = ("--set=index.snapshot_interval_s=0.3",)
    async with (
        engines_running(2, *short_memory) as engines,
        two_processes(engines, *settings) as (router, session),
    ):
        model = engines[0].ready["model"]
        for seed in range(8):
            await ask(session, router, model, seed)
        held = {row["id"]: row["index_blocks"] for row in await index_rows(session, router)}
        # the folder of this supervisor, in memory: nobody has to name a file for it
        [flag] = [
            word
            for word in psutil.Process(router.ready["index"]).cmdline()
            if word.startswith("--set=index.snapshot_file=")
        ]
        file = Path(flag.partition("snapshot_file=")[2])
        asked_at_ns = time.time_ns()

        async def all_in_it():
            return written_at_ns(file) > asked_at_ns

        await until(all_in_it)
        asked_at_ns = written_at_ns(file)
        await until(all_in_it)
        os.kill(router.ready["index"], signal.SIGKILL)

        async def restored():
            rows = await index_rows(session, router)
            return len(rows) == 2 and all(
                row["trust"] == "exact" and row["index_blocks"] == held[row["id"]] for row in rows
            )

        await until(restored, within_s=BACK_S)
        rows = await index_rows(session, router)
        assert all(row["restored_blocks"] == held[row["id"]] for row in rows)
        assert sum(held.values()) > 8 * 30
        await until(lambda: all_exact(session, router))
        for seed in range(8):
            status, reason, matched = await ask(session, router, model, seed)
            assert (status, reason) == (200, "match")
            assert matched > 30


def written_at_ns(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


async def index_rows(session, router):
    """Replicas as the index itself sees them; none while it is away."""
    index = (await debug(session, router)).get("index") or {}
    return index.get("replicas", [])


async def test_routers_of_other_hosts_ask_over_tcp_with_the_token(tmp_path):
    token = tmp_path / "token"
    token.write_text("a secret\n")
    async with engines_running(2) as engines:
        index = await start(
            "router.cli", "index", "--port=0", *replica_flags(engines),
            "--set=index.address=tcp://127.0.0.1:0", f"--set=index.token_file={token}",
        )  # fmt: skip
        shared = (f"--set=index.address={index.ready['address']}",)
        routers: list[Program] = []
        try:
            flags = (*shared, f"--set=index.token_file={token}", "--set=index.deadline_ms=1000")
            starts = [start_routers(engines, *flags) for _ in range(2)]
            routers += await asyncio.gather(*starts)
            stranger = await start_routers(engines, *shared, "--set=index.restore_timeout_s=1")
            routers.append(stranger)
            model = engines[0].ready["model"]
            async with aiohttp.ClientSession() as session:
                for router in routers:
                    await until(partial(is_ready, session, router))
                await ask(session, routers[0], model, 0)

                async def other_finds_it():
                    return (await ask(session, routers[1], model, 0))[1] == "match"

                await until(other_finds_it)
                assert (await ask(session, stranger, model, 0))[:2] == (200, "unknown")
                async with session.get(index.url + "/debug/replicas") as response:
                    assert (await response.json())["routers"] == 2
        finally:
            for program in (index, *routers):
                await program.kill()


async def is_ready(session: aiohttp.ClientSession, router: Program) -> bool:
    async with session.get(router.ready["admin_url"] + "/readyz") as response:
        return response.status == 200
