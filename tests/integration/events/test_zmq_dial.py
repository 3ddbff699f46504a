"""Following an engine over real ZeroMQ sockets on loopback, with all that goes wrong there."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
import zmq
import zmq.asyncio

from router.blocks import Frame, MalformedFrame
from router.events import (
    DialTimes,
    IngestCounters,
    LinkDown,
    LinkUp,
    ReplayUnavailable,
    ReplicaTrust,
    Trust,
    ZmqDial,
    follow,
)
from router.index import MemoryIndex
from tests.support.events import Publisher, eventually, prefix, prompt_frame, prompt_tokens

QUICK = DialTimes(
    connect_s=1.0,
    heartbeat_s=0.1,
    silence_s=0.3,
    retry_min_s=0.02,
    retry_max_s=0.05,
    reply_s=1.0,
    replay_s=10.0,
)


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.term()


@asynccontextmanager
async def publishing(context, **settings) -> AsyncIterator[Publisher]:
    publisher = Publisher(context, **settings)
    try:
        yield publisher
    finally:
        await publisher.close()


class Replica:
    """One followed engine."""

    def __init__(self, context, publisher: Publisher, replay_url: str | None) -> None:
        self.index = MemoryIndex(clock=lambda: 0.0)
        self.trust = ReplicaTrust("a")
        self.counters = IngestCounters()
        self.source = ZmqDial(context, publisher.events_url, replay_url, "kv-events", QUICK)

    def holds(self, *numbers: int) -> bool:
        blocks = {block for number in numbers for block in prefix(prompt_tokens(number))}
        return self.index.blocks_of("a") == blocks

    def is_exact(self) -> bool:
        return self.trust.trust is Trust.EXACT

    async def until(self, claim: Callable[[], bool]) -> None:
        await eventually(claim, f"{self.trust.trust}: {self.trust.reason}; {self.counters}")


@asynccontextmanager
async def following(context, publisher, replay_url: str | None = "its own"):
    url = publisher.replay_url if replay_url == "its own" else replay_url
    a = Replica(context, publisher, url)
    async with running(a):
        yield a


@asynccontextmanager
async def running(a: Replica):
    task = asyncio.create_task(follow("a", a.source, a.index, a.trust, a.counters))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def frames(*seqs: int, life: int = 0):
    return [prompt_frame(seq, life) for seq in seqs]


async def test_a_late_join_learns_past_and_present_without_a_hole(context):
    async with publishing(context) as publisher:
        await publisher.publish(*frames(*range(50)))
        async with following(context, publisher) as a:
            await publisher.subscribed()
            for seq in range(50, 100):
                await publisher.publish(prompt_frame(seq))
            await a.until(lambda: a.is_exact() and a.holds(*range(100)))


async def test_an_idle_engine_is_exact_before_it_has_published_anything(context):
    async with publishing(context) as publisher, following(context, publisher) as a:
        await a.until(a.is_exact)
        assert a.holds()
        await publisher.subscribed()
        await publisher.publish(*frames(0, 1))
        await a.until(lambda: a.holds(0, 1))


async def test_dropped_frames_are_fetched_by_replay(context):
    async with publishing(context) as publisher, following(context, publisher) as a:
        publisher.hides = lambda seq: 3 <= seq <= 5
        await publisher.subscribed()
        await a.until(a.is_exact)
        await publisher.publish(*frames(*range(8)))
        await a.until(lambda: a.is_exact() and a.holds(*range(8)))
        assert a.counters.gaps == 1
        assert publisher.replays_asked == [0, 2]


async def test_a_replay_that_loses_messages_is_asked_again_from_the_hole(context):
    async with publishing(context) as publisher:
        await publisher.publish(*frames(*range(20)))
        publisher.loses_in_replay = [lambda seq: 5 <= seq < 9, lambda seq: seq == 12]
        async with following(context, publisher) as a:
            await a.until(lambda: a.is_exact() and a.holds(*range(20)))
            assert publisher.replays_asked == [0, 5, 12]


async def test_a_long_replay_that_lost_its_tail_is_asked_again(context):
    async with publishing(context) as publisher:
        await publisher.publish(*frames(*range(1500)))
        publisher.loses_in_replay = [lambda seq: seq >= 1100]
        async with following(context, publisher) as a:
            await a.until(lambda: a.is_exact() and a.holds(*range(1500)))
            assert publisher.replays_asked == [0, 1100]


async def test_a_frame_that_is_lost_for_good_degrades_the_replica(context):
    async with publishing(context) as publisher:
        await publisher.publish(*frames(*range(5)))
        publisher.loses_in_replay = [lambda seq: seq == 2] * 100
        async with following(context, publisher) as a:
            await a.until(lambda: "frames 2 to 2 are lost" in a.trust.reason)
            await publisher.subscribed()
            await publisher.publish(*frames(5))
            await a.until(lambda: a.holds(3, 4, 5))
            assert a.trust.trust is Trust.DEGRADED


async def test_a_replay_whose_connection_is_lost_ends_at_once(context):
    """The request went down with it: no answer can come, however long one waits."""
    async with publishing(context) as publisher:
        publisher.is_mute = True
        times = DialTimes(reply_s=60.0)
        patient = ZmqDial(context, publisher.events_url, publisher.replay_url, times=times)
        asked = asyncio.ensure_future(anext(patient.replay(0)))
        await eventually(lambda: publisher.replays_asked == [0])
    with pytest.raises(ReplayUnavailable, match="went away"):
        await asyncio.wait_for(asked, 10.0)


async def test_a_buffer_that_has_lost_the_beginning_degrades_the_replica(context):
    async with publishing(context, buffer=10) as publisher:
        await publisher.publish(*frames(*range(30)))
        async with following(context, publisher) as a:
            await a.until(lambda: a.trust.trust is Trust.DEGRADED and a.holds(*range(20, 30)))
            assert a.trust.reason == "history before frame 20 is unknown"


async def test_a_mute_replay_endpoint_is_given_up_in_time(context):
    async with publishing(context) as publisher:
        publisher.is_mute = True
        async with following(context, publisher) as a:
            await a.until(lambda: a.trust.trust is Trust.DEGRADED)
            assert "no answer" in a.trust.reason
            await publisher.subscribed()
            await publisher.publish(*frames(0, 1))
            await a.until(lambda: a.is_exact() and a.holds(0, 1))


async def test_without_a_replay_endpoint_a_late_join_is_degraded(context):
    async with publishing(context) as publisher:
        await publisher.publish(*frames(0, 1))
        async with following(context, publisher, replay_url=None) as a:
            await publisher.subscribed()
            await publisher.publish(*frames(2))
            await a.until(lambda: a.holds(2))
            assert a.trust.trust is Trust.DEGRADED


async def test_an_engine_that_restarts_on_the_same_address_begins_an_epoch(context):
    async with publishing(context) as first:
        await first.publish(*frames(0, 1, 2))
        async with following(context, first) as a:
            await a.until(lambda: a.is_exact() and a.holds(0, 1, 2))
            await first.close()
            await a.until(lambda: a.trust.trust is Trust.BLIND)
            assert a.holds(0, 1, 2)
            async with publishing(
                context, events_url=first.events_url, replay_url=first.replay_url
            ) as second:
                await second.publish(*frames(*range(5), life=1))
                await a.until(lambda: a.is_exact() and a.holds(*range(5)))
                assert a.trust.epoch == 2


async def test_a_cut_connection_is_noticed_and_what_was_missed_is_fetched(context):
    async with publishing(context) as publisher, Relay(publisher.events_url) as relay:
        a = Replica(context, publisher, publisher.replay_url)
        a.source = ZmqDial(context, relay.url, publisher.replay_url, "kv-events", QUICK)
        async with running(a):
            await publisher.subscribed()
            await publisher.publish(*frames(0))
            await a.until(lambda: a.is_exact() and a.holds(0))
            relay.cut()
            await a.until(lambda: a.counters.link_losses == 1)
            await publisher.publish(*frames(1, 2))
            await a.until(lambda: a.is_exact() and a.holds(0, 1, 2))
            assert (a.trust.epoch, a.counters.restarts) == (1, 0)


async def test_a_peer_that_falls_silent_is_noticed_by_heartbeats(context):
    async with publishing(context) as publisher, Relay(publisher.events_url) as relay:
        a = Replica(context, publisher, publisher.replay_url)
        a.source = ZmqDial(context, relay.url, publisher.replay_url, "kv-events", QUICK)
        async with running(a):
            await a.until(a.is_exact)
            relay.freeze()
            await a.until(lambda: a.trust.trust is Trust.BLIND)
            relay.thaw()
            await a.until(a.is_exact)


async def test_it_starts_while_the_engine_is_down_and_joins_when_it_comes(context):
    async with publishing(context) as publisher:
        urls = {"events_url": publisher.events_url, "replay_url": publisher.replay_url}
    async with following(context, publisher) as a:
        await a.until(lambda: a.trust.reason == "connection refused")
        async with publishing(context, **urls) as late:
            await late.publish(*frames(0, 1))
            await a.until(lambda: a.is_exact() and a.holds(0, 1))


async def test_other_topics_are_not_read(context):
    async with (
        publishing(context, topic="other") as publisher,
        following(context, publisher, replay_url=None) as a,
    ):
        await publisher.subscribed()
        await publisher.publish(*frames(0))
        await publisher.publish_raw([b"kv-events", *raw_frame(0)])
        await a.until(lambda: a.counters.frames == 1)
        assert a.counters.gaps == 0


def raw_frame(seq: int) -> list[bytes]:
    return [seq.to_bytes(8, "big"), prompt_frame(seq).payload]


async def test_a_publisher_of_something_else_is_malformed(context):
    async with publishing(context) as publisher:
        source = ZmqDial(context, publisher.events_url, None, "", QUICK)
        task = asyncio.create_task(
            follow("a", source, MemoryIndex(clock=lambda: 0.0), ReplicaTrust("a"))
        )
        await publisher.subscribed()
        await publisher.publish_raw([b"hello"])
        with pytest.raises(MalformedFrame):
            await asyncio.wait_for(task, 5.0)


async def test_an_address_that_is_none_is_refused(context):
    source = ZmqDial(context, "nonsense", None, "", QUICK)
    with pytest.raises(ValueError, match="nonsense"):
        await anext(source.frames())


async def test_a_source_says_up_before_its_first_frame_and_down_after_its_last(context):
    async with publishing(context) as publisher:
        source = ZmqDial(context, publisher.events_url, None, "", QUICK)
        async with aclosing(source.frames()) as items:
            assert await anext(items) == LinkUp()
            await publisher.subscribed()
            await publisher.publish(*frames(0))
            item = await anext(items)
            assert isinstance(item, Frame)
            assert (item.seq, item.topic) == (0, "kv-events")
            await publisher.close()
            assert await anext(items) == LinkDown("connection lost")


async def test_a_replay_past_the_end_is_empty(context):
    async with publishing(context) as publisher:
        await publisher.publish(*frames(0, 1))
        source = ZmqDial(context, publisher.events_url, publisher.replay_url, "", QUICK)
        assert [frame.seq async for frame in source.replay(1)] == [1]
        assert [frame.seq async for frame in source.replay(10_000)] == []


async def test_a_replay_without_an_endpoint_is_unavailable(context):
    source = ZmqDial(context, "tcp://127.0.0.1:1", None, "", QUICK)
    with pytest.raises(ReplayUnavailable, match="no replay endpoint"):
        await anext(source.replay(0))


class Relay:
    """A TCP relay in front of a publisher that can cut its connections, or stop passing bytes."""

    def __init__(self, target_url: str) -> None:
        host, _, port = target_url.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._relay, sock=self._socket)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.thaw()
        self._server.close()
        self.cut()
        await self._server.wait_closed()
        await eventually(lambda: not self._writers, "all connections closed")

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        ends = {writer, there_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))
        finally:
            for end in ends:
                end.transport.abort()
            self._writers -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
