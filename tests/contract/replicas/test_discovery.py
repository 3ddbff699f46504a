"""What every discovery promises, whatever it looks at."""

import pytest

from tests.support.discoveries import WORLDS, followed, world_of

A, B, C = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))
ONE = {"a": "10.0.0.1"}
TWO = {**ONE, "b": "10.0.0.2"}


@pytest.fixture(params=WORLDS)
async def world(request, tmp_path):
    async with world_of(request.param, tmp_path) as built:
        yield built


async def test_all_replicas_are_yielded_at_once(world):
    await world.set(TWO)
    async with followed(world.discovery) as seen:
        await seen.reach(A, B)
        assert len(seen.sets) == 1


async def test_one_that_joins_is_yielded_within_a_second(world):
    await world.set(ONE)
    async with followed(world.discovery) as seen:
        await seen.reach(A)
        await world.set(TWO)
        await seen.reach(A, B, within_s=1.0)


async def test_one_that_leaves_is_gone_within_a_second(world):
    await world.set(TWO)
    async with followed(world.discovery) as seen:
        await seen.reach(A, B)
        await world.set(ONE)
        await seen.reach(A, within_s=1.0)


async def test_the_last_one_may_leave_and_come_back(world):
    await world.set(ONE)
    async with followed(world.discovery) as seen:
        await seen.reach(A)
        await world.set({})
        await seen.reach(within_s=1.0)
        await world.set(ONE)
        await seen.reach(A, within_s=1.0)


async def test_another_address_under_a_name_is_another_replica(world):
    await world.set(ONE)
    async with followed(world.discovery) as seen:
        await seen.reach(A)
        await world.set({"a": "10.0.0.3"})
        await seen.reach(C)


async def test_trouble_at_the_source_changes_nothing_and_ends(world):
    await world.set(ONE)
    async with followed(world.discovery) as seen:
        await seen.reach(A)
        await world.break_()
        await world.mend()
        await world.set(TWO)
        await seen.reach(A, B)
        assert {len(replicas) for replicas in seen.sets} == {1, 2}


async def test_watching_anew_yields_all_again(world):
    await world.set(ONE)
    for _ in range(2):
        async with followed(world.discovery) as seen:
            await seen.reach(A)
