"""The engine's event stream: a PUB socket, a numbered buffer, and a ROUTER socket that replays it.

As in vLLM: numbers start at 0 with each life of the engine, the buffer holds the last
`buffer_steps` batches, and who asks for older ones gets what is left without a word.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import zmq
import zmq.asyncio

from router.blocks import Event, EventBatch, Form, Frame, MalformedFrame, encode_batch
from router.blocks.wire import decode_replay_request, encode_frame, encode_replay
from workers.engine.faults import FaultPlan

HIGH_WATER_MARK: Final = 100_000
_REPLAY_BURST: Final = 256
_BIND_ATTEMPTS: Final = 40
_BIND_PAUSE_S: Final = 0.05
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Where and how to publish. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    events_port: int = 0
    replay_port: int = 0
    topic: str = ""
    buffer_steps: int = 10_000
    form: Form = Form.MAP


class Publisher:
    """One rank's stream. Sending never waits: a slow subscriber loses batches, as with vLLM."""

    def __init__(self, settings: PublisherSettings, rank: int, faults: FaultPlan) -> None:
        self._settings = settings
        self._rank = rank
        self._faults = faults
        self._seq = 0
        self._buffer: deque[Frame] = deque(maxlen=settings.buffer_steps)
        self._held: Frame | None = None
        self._life = 0
        self._context = zmq.asyncio.Context()
        self._events: zmq.Socket[bytes] | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self._replaying: asyncio.Task[None] | None = None
        self.events_url = _url(settings.host, settings.events_port)
        self.replay_url = _url(settings.host, settings.replay_port)

    @property
    def newest(self) -> Frame | None:
        """The newest frame that can be replayed."""
        return self._buffer[-1] if self._buffer else None

    async def open(self) -> None:
        """Bind both sockets; afterwards the URLs name the real ports."""
        plain = zmq.Context(self._context)
        self._events = plain.socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        for socket in (self._events, self._replay):
            socket.set(zmq.LINGER, 0)
        self._events.set(zmq.SNDHWM, HIGH_WATER_MARK)
        # A ROUTER drops silently at its mark, so a replay must fit below it (vLLM: from 0.33).
        self._replay.set(zmq.SNDHWM, 2 * (self._settings.buffer_steps + 1))
        self.events_url = await _bind(self._events, self.events_url)
        self.replay_url = await _bind(self._replay, self.replay_url)
        self._replaying = asyncio.create_task(self._serve_replays(self._replay))

    async def close(self) -> None:
        """Unbind. The buffer is lost."""
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
        self._life += 1
        for socket in (self._events, self._replay):
            if socket is not None:
                socket.close()
        self._events = self._replay = None

    async def destroy(self) -> None:
        """Close for good."""
        await self.close()
        self._context.destroy(0)

    async def restart(self) -> None:
        """A new life at the same addresses: numbers from 0, nothing to replay."""
        await self.close()
        self._seq = 0
        self._held = None
        self._buffer.clear()
        await self.open()

    def publish(self, events: Sequence[Event]) -> None:
        """Number, keep and send what one step did to the cache."""
        batch = EventBatch(time.time(), tuple(events), self._rank)
        payload = encode_batch(batch, self._settings.form)
        frame = Frame(self._seq, payload, self._settings.topic)
        self._seq += 1
        faults = self._faults.current.events
        lost = self._faults.strikes(faults.lose)
        if not (lost and faults.lose_from_replay):
            self._buffer.append(frame)
        if not lost:
            self._send_in_order(frame)

    def _send_in_order(self, frame: Frame) -> None:
        faults = self._faults.current.events
        held, self._held = self._held, None
        if held is None and self._faults.strikes(faults.reorder):
            self._held = frame
            return
        self._send(frame)
        if self._faults.strikes(faults.duplicate):
            self._send(frame)
        if held is not None:
            self._send(held)

    def _send(self, frame: Frame) -> None:
        delay_ms = self._faults.current.events.delay_ms
        if not delay_ms:
            self._put(frame, self._life)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(delay_ms / 1000.0, self._put, frame, self._life)

    def _put(self, frame: Frame, life: int) -> None:
        # What is late must not turn up in the next life, whose numbers begin anew.
        if self._events is not None and life == self._life:
            self._events.send_multipart(encode_frame(frame), zmq.NOBLOCK)

    async def _serve_replays(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            parts = await socket.recv_multipart()
            try:
                peer, since = decode_replay_request(parts)
            except MalformedFrame as exc:
                log.warning("replay request ignored: %s", exc)
                continue
            await self._replay_to(socket, peer, since)

    async def _replay_to(self, socket: zmq.asyncio.Socket, peer: bytes, since: int) -> None:
        frames: list[Frame | None] = [frame for frame in self._buffer if frame.seq >= since]
        for number, frame in enumerate([*frames, None]):
            await socket.send_multipart([peer, *encode_replay(frame)])
            if number % _REPLAY_BURST == 0:
                await asyncio.sleep(0)


def _url(host: str, port: int) -> str:
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}"


async def _bind(socket: "zmq.Socket[bytes] | zmq.asyncio.Socket", url: str) -> str:
    if "[" in url:
        socket.set(zmq.IPV6, 1)
    for attempt in range(_BIND_ATTEMPTS):
        try:
            socket.bind(url)
            break
        except zmq.ZMQError as exc:
            # ZeroMQ closes sockets in the background: the last life's may still hold the port.
            if exc.errno != zmq.EADDRINUSE or attempt == _BIND_ATTEMPTS - 1:
                raise OSError(exc.errno, f"{url}: {exc.strerror}") from exc
            await asyncio.sleep(_BIND_PAUSE_S)
    bound = socket.get(zmq.LAST_ENDPOINT)
    return bound.decode() if isinstance(bound, bytes) else str(bound)
