"""Worker processes: parts of one run, and what happens when one is lost or stopped."""

import asyncio
import os
import signal

import psutil
import pytest

from loadgen.client import Target
from loadgen.crew import CrewError, Job, join_parts, run_crew
from loadgen.runner import NullWatcher, RunOptions, RunResult
from loadgen.workload.catalogue import KINDS, Recipe
from tests.support.loadgen import Script, plain_answer, serve
from tests.support.records import record


def job(url: str, requests: int = 12) -> Job:
    options = KINDS["unique"].options(requests=requests, question_tokens=8)
    recipe = Recipe("unique", options)
    return Job(Target(url, "m"), recipe, (1, 1.0, None), "", RunOptions(), 20.0)


def workers() -> list[int]:
    mine = psutil.Process().children()
    return [one.pid for one in mine if "loadgen.crew" in one.cmdline()]


async def test_parts_make_one_run():
    async with serve(lambda body: Script([plain_answer(["a"])])) as server:
        result = await run_crew(job(server.url), 2, NullWatcher(), asyncio.Event())
    assert sorted(one.number for one in result.records) == list(range(12))
    assert len({one.session for one in result.records}) == 12
    assert (result.planned, len(result.cpu_s), result.is_stopped) == (12, 2, False)
    assert workers() == []


async def test_stop_ends_all_parts_and_keeps_what_was_answered():
    stop = asyncio.Event()

    def answer(body: object) -> Script:
        if len(server.asked) == 6:
            stop.set()
        return Script([plain_answer(["a"])])

    async with serve(answer) as server:
        result = await run_crew(job(server.url, requests=4000), 2, NullWatcher(), stop)
    assert result.is_stopped
    assert 0 < len(result.records) < 4000
    assert workers() == []


async def test_lost_worker_is_an_error_and_leaves_none_behind():
    def answer(body: object) -> Script:
        if len(server.asked) == 4:
            os.kill(workers()[0], signal.SIGKILL)
        return Script([plain_answer(["a"])])

    async with serve(answer) as server:
        with pytest.raises(CrewError, match="ended before its part was done"):
            await run_crew(job(server.url, requests=4000), 2, NullWatcher(), asyncio.Event())
    assert workers() == []


def test_joined_parts_keep_each_process_s_cpu():
    parts = [
        RunResult(planned=4, records=[record(n)], cpu_s=[float(n)], events=5, duration_s=n)
        for n in (1, 2)
    ]
    joined = join_parts(parts)
    assert (joined.planned, joined.cpu_s, joined.events) == (4, [1.0, 2.0], 10)
    assert joined.duration_s == 2
