import asyncio
import resource

import pytest
import uvloop

from router.busy_poll import never_sleep


def times_asleep() -> int:
    """How often this thread has given its core away to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


async def wait_for_nothing(*, busy: bool) -> int:
    task = asyncio.create_task(never_sleep()) if busy else None
    await asyncio.sleep(0)
    before = times_asleep()
    for _ in range(5):
        await asyncio.sleep(0.01)
    if task is not None:
        task.cancel()
    return times_asleep() - before


@pytest.mark.parametrize(("busy", "sleeps"), [(False, True), (True, False)])
def test_only_a_loop_that_polls_never_gives_its_core_away(busy, sleeps):
    assert bool(uvloop.run(wait_for_nothing(busy=busy))) is sleeps
