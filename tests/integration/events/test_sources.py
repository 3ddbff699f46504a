"""Where a replica's events come from: what is configured, what it says itself, or who dials us."""

import asyncio

import aiohttp
import pytest
import zmq.asyncio

from router.blocks import AllBlocksCleared, EventBatch, Frame, encode_batch
from router.blocks.wire import encode_frame
from router.events.keeper import Keeper
from router.events.sources import BoundSources, DialSources
from router.events.trust import Trust
from router.events.zmq_bind import ZmqBind
from router.index.memory import MemoryIndex
from router.replicas import Pool
from tests.support.builders import ManualClock, model_rows, replica
from tests.support.engines import plain_engine
from tests.support.processes import until
from workers.engine import EngineOptions, run_engine


@pytest.fixture
async def context():
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
async def dial(context):
    async with aiohttp.ClientSession() as session:
        yield DialSources(context, session)


def kept(sources, one):
    """A keeper whose pool has one healthy replica."""
    pool, keeper = Pool(ManualClock()), Keeper(MemoryIndex(clock=ManualClock()), sources)
    pool.on_health.append(keeper.health_changed)
    pool.reconcile([one])
    pool.mark_up(one.id, model_rows("m"))
    return pool, keeper


async def trust_is(keeper, replica_id, trust):
    return keeper.of(replica_id).trust.trust is trust


async def test_a_url_is_enough_for_an_engine_that_says_where_it_publishes(dial):
    async with run_engine(EngineOptions()) as engine:
        pool, keeper = kept(dial, replica("r1", engine.url))
        keeping = asyncio.create_task(keeper.keep(pool.get("r1")))
        await until(lambda: trust_is(keeper, "r1", Trust.EXACT))
        keeping.cancel()
        await asyncio.wait([keeping])


async def test_an_engine_without_events_is_guessed_at_and_told_the_flag(dial):
    async with plain_engine() as engine:
        pool, keeper = kept(dial, replica("r1", engine.url))
        keeping = asyncio.create_task(keeper.keep(pool.get("r1")))

        async def is_said():
            return keeper.of("r1").trust.trust is Trust.APPROXIMATE

        await until(is_said)
        assert "--kv-events-config" in keeper.of("r1").trust.reason
        prompt = [11, 12, 13]
        keeper.served("r1", prompt, None)
        assert keeper.index.match(prompt) == {"r1": 3}
        keeping.cancel()
        await asyncio.wait([keeping])


async def test_a_replica_that_goes_down_is_forgotten_and_followed_again_when_it_is_up(dial):
    async with run_engine(EngineOptions()) as engine:
        pool, keeper = kept(dial, replica("r1", engine.url))
        keeping = asyncio.create_task(keeper.keep(pool.get("r1")))
        await until(lambda: trust_is(keeper, "r1", Trust.EXACT))
        pool.mark_down("r1", "refused")
        await until(lambda: trust_is(keeper, "r1", Trust.BLIND))
        pool.mark_up("r1", model_rows("m"))
        await until(lambda: trust_is(keeper, "r1", Trust.EXACT))
        keeping.cancel()
        await asyncio.wait([keeping])


async def test_an_engine_that_dials_the_router_is_known_by_its_topic(context, dial):
    bind = ZmqBind(context, "tcp://127.0.0.1:*")
    reading = asyncio.create_task(bind.run())
    pool, keeper = kept(BoundSources(bind, dial), replica("r1", "http://127.0.0.1:1"))
    keeping = asyncio.create_task(keeper.keep(pool.get("r1")))
    publisher = context.socket(zmq.PUB)
    publisher.connect(bind.endpoint)
    payload = encode_batch(EventBatch(1.0, (AllBlocksCleared(),), 0))
    seq = 0

    async def has_come():
        nonlocal seq
        await publisher.send_multipart(encode_frame(Frame(seq, payload, "r1")))
        seq += 1
        return keeper.of("r1").counters.frames > 0

    await until(has_come)
    assert await trust_is(keeper, "r1", Trust.EXACT)
    for task in (keeping, reading):
        task.cancel()
    await asyncio.wait([keeping, reading])
    publisher.close(linger=0)
    bind.close()
