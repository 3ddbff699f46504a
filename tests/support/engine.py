"""The embedded engine in tests: virtual time, scripted answers, and followers of its events."""

import asyncio
import json
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import zmq
import zmq.asyncio

from router.blocks import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    as_tokens,
    decode_batch,
    hash_blocks,
    prefix_seed,
)
from router.blocks.wire import Frame, decode_frame, decode_replay, encode_replay_request
from workers.engine.core import CoreLimits, EngineCore
from workers.engine.metrics import CoreMetrics
from workers.engine.profile import Profile
from workers.engine.sequence import Adapter, Chain, Ending, Finish, Identity
from workers.engine.sequence import Sequence as EngineSequence

DEADLINE_S = 10.0
FLAT = Profile(
    name="flat",
    basis="made for tests: every step takes 10 ms",
    step_ms=10.0,
    decode_ms_per_sequence=0.0,
    decode_ms_per_kv_token=0.0,
    prefill_ms_per_token=0.0,
    prefill_ms_per_token_squared=0.0,
    kv_tokens=16_384,
    max_model_len=8_192,
)


class VirtualClock:
    """Time passes as fast as the sleepers allow: a sleep jumps there at once."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    async def sleep_until(self, moment: float) -> None:
        await asyncio.sleep(0)
        self.time_s = max(self.time_s, moment)


class Scripted:
    """An answer that was written down before; without one, counts up."""

    def __init__(self, tokens: Iterable[int] | None = None) -> None:
        self._tokens = iter(range(1_000_000, 2_000_000) if tokens is None else tokens)

    def next_token(self) -> int:
        return next(self._tokens)


@dataclass
class Heard:
    """A listener that remembers."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    lost: bool = False

    def token(self, token: int, finish: Finish | None) -> Finish | None:
        self.tokens.append(token)
        self.finish = finish
        return finish

    def aborted(self) -> None:
        self.lost = True


def sequence(
    prompt: Sequence[int],
    max_tokens: int = 1,
    *,
    block_size: int = 4,
    salt: str | None = None,
    adapter: Adapter | None = None,
    answer: Iterable[int] | None = None,
    root: int = 99,
) -> EngineSequence:
    """A sequence whose listener is a `Heard`."""
    identity = Identity(salt, adapter)
    return EngineSequence(
        tokens=as_tokens(prompt),
        chain=Chain(block_size, root, identity),
        identity=identity,
        ending=Ending(max_tokens),
        answer=Scripted(answer),
        listener=Heard(),
    )


class Follower:
    """What a subscriber can know: our own prefix hash → copies, from the events alone."""

    def __init__(self) -> None:
        self.copies: Counter[int] = Counter()
        self.batches: list[list[Event]] = []
        self._keys: dict[int | bytes, int] = {}

    def publish(self, events: Sequence[Event]) -> None:
        self.batches.append(list(events))
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                for value in event.block_hashes:
                    self.copies[self._keys[value]] -= 1
            else:
                self.copies.clear()
                self._keys.clear()
        self.copies = +self.copies

    def _store(self, event: BlockStored) -> None:
        if event.parent_block_hash is None:
            extra = list((event.extra_keys or [None])[0] or [])
            salt = next((key for key in extra if key != event.lora_name), None)
            seed = prefix_seed(salt, event.lora_name)
        else:
            seed = self._keys[event.parent_block_hash]
        keys = hash_blocks(as_tokens(event.token_ids), event.block_size, seed)
        self._keys.update(zip(event.block_hashes, keys, strict=True))
        self.copies.update(keys)


def core(
    follower: Follower,
    clock: VirtualClock,
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    profile: Profile = FLAT,
) -> EngineCore:
    """A core in virtual time."""
    limits = CoreLimits(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    return EngineCore(limits, profile, follower, CoreMetrics(), clock)


@asynccontextmanager
async def stepping(engine_core: EngineCore) -> AsyncIterator[None]:
    """Run a core's loop; what kills it fails the test."""
    loop = asyncio.create_task(engine_core.run())
    try:
        yield
        if loop.done():
            loop.result()
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def eventually(claim: Any, what: str = "it", *, every_s: float = 0.005) -> Any:
    """Poll until the claim (sync or async callable) holds; returns what it returned.

    In virtual time poll with `every_s=0`: whole answers pass within a millisecond.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while True:
        value = claim()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert loop.time() < deadline, f"{what} did not happen in {DEADLINE_S} s"
        await asyncio.sleep(every_s)


async def post(http: aiohttp.ClientSession, url: str, body: object, **headers: str) -> Any:
    """A reply's JSON, after checking that it is 200."""
    async with http.post(url, json=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()


async def stream(http: aiohttp.ClientSession, url: str, body: Mapping[str, object]) -> list[Any]:
    """The chunks of a stream that ended with [DONE]."""
    async with http.post(url, json={**body, "stream": True}) as reply:
        assert reply.status == 200, await reply.text()
        text = await reply.text()
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


class Subscriber:
    """A SUB socket, and DEALER sockets for replays."""

    def __init__(self, events_url: str, replay_url: str) -> None:
        self._context = zmq.asyncio.Context()
        self._replay_url = replay_url
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._events_url = events_url

    async def ready(self) -> None:
        """Connect, and wait until the publisher has taken the connection and the subscription."""
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(self._events_url)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await monitor.recv_multipart()
        finally:
            self._socket.disable_monitor()
            monitor.close(0)
        # what is subscribed to follows the handshake: by this answer the publisher has read it
        await self.replay(0)

    async def frames(self, count: int) -> list[Frame]:
        """The next `count` frames."""
        async with asyncio.timeout(DEADLINE_S):
            return [decode_frame(await self._socket.recv_multipart()) for _ in range(count)]

    async def replay(self, since: int) -> list[Frame]:
        """All buffered frames from `since` on."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._replay_url)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await socket.send_multipart(encode_replay_request(since))
                frames = []
                while (frame := decode_replay(await socket.recv_multipart())) is not None:
                    frames.append(frame)
                return frames
        finally:
            socket.close()

    def close(self) -> None:
        self._socket.close()
        self._context.destroy(0)


@asynccontextmanager
async def subscribed(running: Any) -> AsyncIterator[Subscriber]:
    """Subscribed to a running engine's rank 0."""
    subscriber = Subscriber(running.events_url, running.replay_url)
    try:
        await subscriber.ready()
        yield subscriber
    finally:
        subscriber.close()


def events_of(frames: Iterable[Frame]) -> list[Event]:
    """All events, in the frames' order."""
    return [event for frame in frames for event in decode_batch(frame.payload).events]


def kinds(events: Iterable[Event]) -> str:
    """One letter per event: stored, removed, cleared."""
    letters = {BlockStored: "S", BlockRemoved: "R", AllBlocksCleared: "C"}
    return "".join(letters[type(event)] for event in events)


def tokens_of(first: int, count: int) -> "array[int]":
    """`count` different token ids from `first` on."""
    return as_tokens(range(first, first + count))
