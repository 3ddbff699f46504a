"""Frames over ZeroMQ from engines that we dial (for those that dial us: `zmq_bind`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from router.blocks import Frame
from router.blocks.wire import decode_frame, decode_replay, encode_replay_request
from router.events.protocol import Item, LinkDown, LinkUp, NoReplay, Quiet, ReplayUnavailable
from router.events.replay import in_rounds

_UP: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN: Final = {
    zmq.EVENT_CLOSED: "connection refused",
    zmq.EVENT_CONNECT_RETRIED: "connection refused",
    zmq.EVENT_DISCONNECTED: "connection lost",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake failed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake failed: not a ZeroMQ peer",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "handshake failed: not allowed",
}
_ROUND: Final = 256  # frames read before looking at the connection again


@dataclass(frozen=True, slots=True)
class DialTimes:
    """Seconds. A silent connection is given up after `silence_s`, though the engine be idle."""

    connect_s: float = 5.0
    heartbeat_s: float = 2.0
    silence_s: float = 6.0
    quiet_s: float = 2.0
    """After so long without a frame the publisher is asked whether there was one."""
    retry_min_s: float = 0.1
    retry_max_s: float = 5.0
    reply_s: float = 5.0
    """Longest wait for the next message of a replay."""
    replay_s: float = 60.0
    """Longest replay, all rounds and the consumer's work included."""


class ZmqDial:
    """`EventSource` that connects to one engine's PUB socket, and to its replay ROUTER if any.

    `events_url`, `replay_url`: "tcp://host:port" or "ipc://path". `topic`: subscription prefix.
    Each connection has a socket of its own that never reconnects by itself, so frames of two
    lives of an engine cannot mix, and a lost connection is always seen: at once when the peer's
    system closes it, within `silence_s` when the peer's machine is gone (ZMTP heartbeats).
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        events_url: str,
        replay_url: str | None = None,
        topic: str = "",
        times: DialTimes | None = None,
    ) -> None:
        self._context = context
        self._events_url = events_url
        self._replay_url = replay_url
        self._topic = topic
        self._times = times or DialTimes()

    async def frames(self) -> AsyncGenerator[Item, None]:
        """See `EventSource`."""
        delay_s = self._times.retry_min_s
        while True:
            async with aclosing(self._one_connection()) as items:
                async for item in items:
                    if isinstance(item, LinkUp):
                        delay_s = self._times.retry_min_s
                    yield item
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, self._times.retry_max_s)

    async def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        """See `EventSource`."""
        if self._replay_url is None:
            raise NoReplay("no replay endpoint")
        deadline = asyncio.get_running_loop().time() + self._times.replay_s
        ask = partial(self._ask, self._replay_url, deadline)
        async with aclosing(in_rounds(ask, since)) as frames:
            async for frame in frames:
                yield frame

    async def _one_connection(self) -> AsyncGenerator[Item, None]:
        with self._connected() as (subscriber, monitor):
            poller = zmq.asyncio.Poller()
            poller.register(subscriber, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            is_up = False
            while True:
                ready = dict(await poller.poll(_ms(self._times.quiet_s)))
                if monitor in ready:
                    change = _read_change(await monitor.recv_multipart())
                    if isinstance(change, LinkDown):
                        yield change
                        return
                    if isinstance(change, LinkUp):
                        is_up = True
                        yield change
                elif is_up:
                    async for item in _read_frames(subscriber):
                        yield item

    async def _ask(self, url: str, deadline: float, since: int) -> AsyncGenerator[Frame, None]:
        """One answer of the replay endpoint, up to its end marker."""
        with self._dealer(url) as (dealer, monitor):
            poller = zmq.asyncio.Poller()
            poller.register(dealer, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            await dealer.send_multipart(encode_replay_request(since))
            while True:
                await self._await_answer(poller, dealer, url, deadline)
                while (parts := await _read_parts(dealer)) is not None:
                    frame = decode_replay(parts)
                    if frame is None:
                        return
                    yield frame

    async def _await_answer(
        self, poller: zmq.asyncio.Poller, dealer: zmq.asyncio.Socket, url: str, deadline: float
    ) -> None:
        """Until there is something to read. ReplayUnavailable: in time, or ever: the request went
        down with the connection, and a new one would not repeat it."""
        wait_s = min(self._times.reply_s, deadline - asyncio.get_running_loop().time())
        ready = dict(await poller.poll(_ms(wait_s))) if wait_s > 0 else {}
        if not ready:
            raise ReplayUnavailable(f"no answer from {url} within {max(wait_s, 0):.1f} s")
        if dealer not in ready:
            raise ReplayUnavailable(f"{url} went away before it had answered")

    @contextmanager
    def _connected(self) -> Iterator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]]:
        subscriber = self._context.socket(zmq.SUB)
        monitor = subscriber.get_monitor_socket(_UP | _all_of(_DOWN))
        try:
            self._set_options(subscriber)
            subscriber.subscribe(self._topic)
            _connect(subscriber, self._events_url)
            yield subscriber, monitor
        finally:
            subscriber.disable_monitor()
            monitor.close(linger=0)
            subscriber.close(linger=0)

    @contextmanager
    def _dealer(self, url: str) -> Iterator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]]:
        """And what says that its connection is lost. While there is none ZeroMQ tries again."""
        dealer = self._context.socket(zmq.DEALER)
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            dealer.setsockopt(zmq.RCVHWM, 0)
            _connect(dealer, url)
            yield dealer, monitor
        finally:
            dealer.disable_monitor()
            monitor.close(linger=0)
            dealer.close(linger=0)

    def _set_options(self, subscriber: zmq.asyncio.Socket) -> None:
        times = self._times
        subscriber.setsockopt(zmq.RCVHWM, 0)
        subscriber.setsockopt(zmq.RECONNECT_IVL, -1)
        subscriber.setsockopt(zmq.CONNECT_TIMEOUT, _ms(times.connect_s))
        subscriber.setsockopt(zmq.HANDSHAKE_IVL, _ms(times.connect_s))
        subscriber.setsockopt(zmq.HEARTBEAT_IVL, _ms(times.heartbeat_s))
        subscriber.setsockopt(zmq.HEARTBEAT_TIMEOUT, _ms(times.silence_s - times.heartbeat_s))


def _connect(socket: zmq.asyncio.Socket, url: str) -> None:
    try:
        socket.connect(url)
    except zmq.ZMQError as exc:
        raise ValueError(f"{url!r} is no ZeroMQ address: {exc}") from exc


async def _read_frames(subscriber: zmq.asyncio.Socket) -> AsyncGenerator[Item, None]:
    """What has come: some frames, or `Quiet` if none."""
    item: Item | None = await _read_frame(subscriber) or Quiet()
    for _ in range(_ROUND):
        if item is None:
            return
        yield item
        item = await _read_frame(subscriber) if isinstance(item, Frame) else None


async def _read_frame(subscriber: zmq.asyncio.Socket) -> Frame | None:
    parts = await _read_parts(subscriber)
    return None if parts is None else decode_frame(parts)


async def _read_parts(socket: zmq.asyncio.Socket) -> list[bytes] | None:
    """A message that has come; None: there is none."""
    try:
        return await socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def _read_change(message: list[bytes]) -> LinkUp | LinkDown | None:
    event = parse_monitor_message(message)["event"]
    if event == _UP:
        return LinkUp()
    reason = _DOWN.get(zmq.Event(event))
    return LinkDown(reason) if reason else None


def _all_of(events: dict[zmq.Event, str]) -> int:
    mask = 0
    for event in events:
        mask |= event
    return mask


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
