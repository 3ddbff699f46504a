"""The short form of `make fuzz`."""

import asyncio
from random import Random

import pytest

from tests.fuzz.hot_grammar import every_oddity, split
from tests.fuzz.http_fuzz import Findings, fuzz, talk
from tests.support.faults import bed, works
from tests.support.processes import until


@pytest.mark.timeout(180)
async def test_a_thousand_mutated_conversations_find_nothing():
    found = await fuzz(1000, seed=7)
    assert found.bad == []
    assert found.statuses[200] > 50
    assert found.statuses[400] > 100


@pytest.mark.timeout(180)
async def test_each_oddity_of_the_hot_route_is_read_as_the_reference_reads_it():
    found, rng = Findings(), Random(11)
    settings = ("listen.head_timeout_s=2", "listen.body_timeout_s=2")
    async with bed(works, settings=settings) as run:
        cases = iter([split(each, rng) for each in every_oddity() for _ in range(4)])

        async def work():
            for number, pieces in enumerate(cases):
                await talk(run, pieces, 1.0, f"case {number}", found)

        await asyncio.gather(*(work() for _ in range(64)))
        await until(run.is_idle)
    assert found.bad == []
    assert found.statuses[200] > 100
    assert found.statuses[400] > 100
