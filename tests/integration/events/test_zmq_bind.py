"""Engines that dial us: many publishers on one bound socket, told apart by topic."""

import asyncio
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
import zmq
import zmq.asyncio

from router.blocks import Frame
from router.blocks.wire import encode_frame
from router.events import LinkUp, ReplayUnavailable, ReplicaTrust, Trust, ZmqBind, follow
from router.index import MemoryIndex
from tests.support.events import eventually, prefix, prompt_frame, prompt_tokens


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.term()


@pytest.fixture
async def bind(context):
    bind = ZmqBind(context, "tcp://127.0.0.1:*", queue_frames=3)
    task = asyncio.create_task(bind.run())
    yield bind
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    bind.close()


@asynccontextmanager
async def engine(context, bind):
    """A PUB socket that is connected to us, and whose frames reach us."""
    publisher = context.socket(zmq.XPUB)
    publisher.connect(bind.endpoint)
    await publisher.recv()  # our subscription
    try:
        yield publisher
    finally:
        publisher.close(linger=0)


@asynccontextmanager
async def following(replica_id, source, index):
    trust = ReplicaTrust(replica_id)
    task = asyncio.create_task(follow(replica_id, source, index, trust))
    try:
        await eventually(lambda: trust.trust is Trust.DEGRADED, "reading")
        yield trust
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def send(publisher, topic, *seqs, life=0):
    for seq in seqs:
        payload = prompt_frame(seq, life).payload
        await publisher.send_multipart(encode_frame(Frame(seq, payload, topic)))


def holds(index, replica_id, *numbers):
    blocks = {block for number in numbers for block in prefix(prompt_tokens(number))}
    return lambda: index.blocks_of(replica_id) == blocks


async def test_frames_of_several_engines_reach_the_replica_of_their_topic(context, bind):
    index = MemoryIndex(clock=lambda: 0.0)
    async with (
        following("a", bind.source("topic-a"), index) as a,
        following("b", bind.source("topic-b"), index) as b,
        engine(context, bind) as engine_a,
        engine(context, bind) as engine_b,
    ):
        await send(engine_a, "topic-a", 0, 1)
        await send(engine_b, "topic-b", 0)
        await send(engine_a, "topic-a", 2)
        await eventually(holds(index, "a", 0, 1, 2), "a")
        await eventually(holds(index, "b", 0), "b")
        assert (a.trust, b.trust) == (Trust.EXACT, Trust.EXACT)


async def test_a_restart_is_seen_in_the_numbers(context, bind):
    index = MemoryIndex(clock=lambda: 0.0)
    async with following("a", bind.source("topic-a"), index) as trust:
        async with engine(context, bind) as publisher:
            await send(publisher, "topic-a", 0, 1)
            await eventually(holds(index, "a", 0, 1), "first life")
        async with engine(context, bind) as publisher:
            await send(publisher, "topic-a", 0, life=1)
            await eventually(holds(index, "a", 0), "second life")
        assert (trust.trust, trust.epoch) == (Trust.EXACT, 2)


async def test_frames_without_a_reader_are_counted_and_dropped(context, bind):
    async with engine(context, bind) as publisher:
        await send(publisher, "topic-a", 0, 1)
        await eventually(lambda: bind.unclaimed == 2, "unclaimed")


async def test_a_reader_that_does_not_read_loses_frames_not_memory(context, bind):
    async with aclosing(bind.source("topic-a").frames()) as items:
        assert await anext(items) == LinkUp()
        async with engine(context, bind) as publisher:
            await send(publisher, "topic-a", *range(10))
            await eventually(lambda: bind.dropped == 7, "dropped")
            await anext(items)
            await send(publisher, "topic-a", 10)
            seqs = []
            for _ in range(3):
                item = await anext(items)
                assert isinstance(item, Frame)
                seqs.append(item.seq)
            assert seqs == [1, 2, 10]


async def test_a_topic_has_one_reader_at_a_time(bind):
    async with aclosing(bind.source("topic-a").frames()) as items:
        await anext(items)
        with pytest.raises(ValueError, match="topic-a"):
            await anext(bind.source("topic-a").frames())
    async with aclosing(bind.source("topic-a").frames()) as items:
        assert await anext(items) == LinkUp()


async def test_there_is_no_replay(bind):
    with pytest.raises(ReplayUnavailable):
        await anext(bind.source("topic-a").replay(0))


async def test_an_address_in_use_is_an_os_error(context, bind):
    with pytest.raises(OSError, match="cannot bind"):
        ZmqBind(context, bind.endpoint)
