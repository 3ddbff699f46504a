"""Expected failures start a task over; a bug is told; closing ends everything."""

import asyncio

import pytest

from router.supervise import Supervisor


async def test_an_expected_failure_starts_the_task_over():
    restarts: list[str] = []
    runs, again = [], asyncio.Event()

    async def work():
        runs.append(1)
        if len(runs) == 1:
            raise ConnectionResetError("gone")
        again.set()
        await asyncio.Event().wait()

    starts: list[str] = []
    async with Supervisor(restarts.append, starts.append) as supervisor:
        supervisor.run("events r1", work)
        await asyncio.wait_for(again.wait(), 5)
    assert restarts == ["events r1"]
    assert starts == ["events r1"]


async def test_a_bug_is_told_and_not_retried():
    async def work():
        raise KeyError("bug")

    async with Supervisor() as supervisor:
        supervisor.run("x", work)
        with pytest.raises(KeyError):
            await asyncio.wait_for(asyncio.shield(supervisor.crashed), 5)


async def test_stopping_waits_for_the_tasks_own_clean_up():
    started, cleaned = asyncio.Event(), []

    async def work():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async with Supervisor() as supervisor:
        supervisor.run("x", work)
        await started.wait()
        await supervisor.stop("x")
        assert cleaned == [True]
        started.clear()
        supervisor.run("x", work)
        await started.wait()
    assert cleaned == [True, True]


async def test_a_task_that_loses_its_first_cancel_ends_all_the_same(monkeypatch):
    monkeypatch.setattr("router.supervise.INSIST_S", 0.01)
    started = asyncio.Event()
    lost: list[bool] = []

    async def work():
        while True:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(True)

    async with Supervisor() as supervisor:
        supervisor.run("stopped", work)
        await started.wait()
        async with asyncio.timeout(5):
            await supervisor.stop("stopped")
        lost.clear()
        started.clear()
        supervisor.run("closed", work)
        await started.wait()
    assert lost == [True]


async def forever():
    await asyncio.Event().wait()


async def test_a_name_is_used_once():
    async with Supervisor() as supervisor:
        supervisor.run("x", forever)
        with pytest.raises(ValueError, match="already"):
            supervisor.run("x", forever)
