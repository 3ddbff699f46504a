"""Frames over ZeroMQ from engines that connect to us, as vLLM does with a plain endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import zmq
import zmq.asyncio

from router.blocks import Frame
from router.blocks.wire import decode_frame
from router.events.protocol import Item, LinkUp, NoReplay


class ZmqBind:
    """One SUB socket that binds; any number of engines connect their PUB sockets to it.

    The only thing that tells their frames apart is the topic, so each replica needs a topic of
    its own (`--kv-events-config '{"topic": ...}'`), and each data-parallel rank an address of its
    own, because ranks of one engine share a topic. Connections are not told apart either: there
    is no replay, and a lost one shows only in the numbers of the frames that come later.

    `run` reads for all; `source(topic)` is one replica's `EventSource`. `queue_frames`: how many
    frames of a topic may wait for their reader; further ones are dropped, which the reader sees
    as a gap. Frames that come before there is a reader are missed likewise. OSError if the
    address can't be bound.
    """

    def __init__(
        self, context: zmq.asyncio.Context, bind_url: str, *, queue_frames: int = 10_000
    ) -> None:
        self._queue_frames = queue_frames
        self._queues: dict[str, asyncio.Queue[Frame]] = {}
        self.unclaimed = 0
        """Frames under a topic that no source reads."""
        self.dropped = 0
        """Frames that found their queue full."""
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.subscribe(b"")
        try:
            self._socket.bind(bind_url)
        except zmq.ZMQError as exc:
            self._socket.close(linger=0)
            raise OSError(exc.errno, f"cannot bind {bind_url}: {exc.strerror}") from exc

    @property
    def endpoint(self) -> str:
        """The address bound, with the real port when 0 or * was asked for."""
        raw = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(raw, bytes)
        return raw.rstrip(b"\0").decode()

    async def run(self) -> None:
        """Read until cancelled. MalformedFrame: somebody else talks to our address."""
        while True:
            self._hand_on(decode_frame(await self._socket.recv_multipart()))

    def source(self, topic: str) -> BoundTopic:
        """The frames of one topic, for one reader at a time."""
        return BoundTopic(self, topic)

    @contextmanager
    def reading(self, topic: str) -> Iterator[asyncio.Queue[Frame]]:
        """The queue that gets a topic's frames meanwhile. ValueError if it is being read."""
        if topic in self._queues:
            raise ValueError(f"topic {topic!r} has a reader already")
        queue = self._queues[topic] = asyncio.Queue(self._queue_frames)
        try:
            yield queue
        finally:
            del self._queues[topic]

    def close(self) -> None:
        """Unbind."""
        self._socket.close(linger=0)

    def _hand_on(self, frame: Frame) -> None:
        queue = self._queues.get(frame.topic)
        if queue is None:
            self.unclaimed += 1
        elif queue.full():
            self.dropped += 1
        else:
            queue.put_nowait(frame)


class BoundTopic:
    """`EventSource` of one topic of a `ZmqBind`. Always up: who connects to us is not known."""

    def __init__(self, bind: ZmqBind, topic: str) -> None:
        self._bind = bind
        self._topic = topic

    async def frames(self) -> AsyncGenerator[Item, None]:
        """See `EventSource`."""
        with self._bind.reading(self._topic) as queue:
            yield LinkUp()
            while True:
                yield await queue.get()

    async def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        """See `EventSource`: always unavailable."""
        nothing: tuple[Frame, ...] = ()
        for frame in nothing:
            yield frame
        raise NoReplay("engines that dial us cannot be asked")
