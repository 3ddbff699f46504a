"""Publishers for tests: a scripted source without I/O, and one on real sockets that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import zmq
import zmq.asyncio

from router.blocks import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    EventBatch,
    Frame,
    Hashes,
    as_tokens,
    encode_batch,
    hash_blocks,
    prefix_seed,
)
from router.blocks.wire import decode_replay_request, encode_frame, encode_replay
from router.events import Item, NoReplay

BLOCK_SIZE = 4
CLEARED = AllBlocksCleared()


def stored(
    handles: Sequence[EngineHash],
    tokens: Sequence[int],
    parent: EngineHash | None = None,
    **fields: Any,
) -> BlockStored:
    """BlockStored with blocks of `BLOCK_SIZE`, or as `block_size` says."""
    size = fields.pop("block_size", BLOCK_SIZE)
    return BlockStored(tuple(handles), parent, list(tokens), size, **fields)


def removed(*handles: EngineHash, **fields: Any) -> BlockRemoved:
    return BlockRemoved(handles, **fields)


def prefix(
    tokens: Iterable[int],
    block_size: int = BLOCK_SIZE,
    salt: str | None = None,
    adapter: str | None = None,
) -> Hashes:
    """Our hashes of a prompt."""
    return hash_blocks(as_tokens(tokens), block_size, prefix_seed(salt, adapter))


def frame(seq: int, *events: Event, ts: float | None = None, topic: str = "") -> Frame:
    """One batch; by default its time is its number, so that equal numbers mean equal bytes."""
    batch = EventBatch(float(seq) if ts is None else ts, events, 0)
    return Frame(seq, encode_batch(batch), topic)


def prompt_frame(seq: int, life: int = 0) -> Frame:
    """Stores one prompt of one block; `prompt_tokens(seq)` are its tokens."""
    return frame(seq, stored([10_000 + seq], prompt_tokens(seq)), ts=life * 1e6 + seq)


def prompt_tokens(number: int) -> list[int]:
    return [number * 10 + i for i in range(BLOCK_SIZE)]


class ScriptedSource:
    """`EventSource` that says what it is told, and replays `past` (None: no replay endpoint)."""

    def __init__(self, past: Sequence[Frame] | None = ()) -> None:
        self.past = past
        self.asked: list[int] = []
        self._items: asyncio.Queue[Item | Exception] = asyncio.Queue()

    def say(self, *items: Item | Exception) -> None:
        for item in items:
            self._items.put_nowait(item)

    async def drained(self) -> None:
        """Wait until the consumer has come back for more than was said."""
        await self._items.join()

    async def frames(self) -> AsyncGenerator[Item, None]:
        while True:
            item = await self._items.get()
            try:
                if isinstance(item, Exception):
                    raise item
                yield item
            finally:
                self._items.task_done()

    async def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        self.asked.append(since)
        if self.past is None:
            raise NoReplay("no replay endpoint")
        for item in self.past:
            if item.seq >= since:
                yield item


class Publisher:
    """An engine's PUB and replay ROUTER sockets on loopback; keeps the last `buffer` frames.

    `hides` picks frames that are kept but not published; `loses_in_replay` says, for each answer,
    which numbers are left out of it.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        *,
        topic: str = "kv-events",
        buffer: int = 10_000,
        events_url: str = "tcp://127.0.0.1:*",
        replay_url: str = "tcp://127.0.0.1:*",
    ) -> None:
        self._topic = topic
        self._buffer = buffer
        self.kept: list[Frame] = []
        self.hides: Callable[[int], bool] = lambda seq: False
        self.loses_in_replay: list[Callable[[int], bool]] = []
        self.replays_asked: list[int] = []
        self.is_mute = False
        self._pub = context.socket(zmq.XPUB)
        self._router = context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._pub.bind(events_url)
        self._router.bind(replay_url)
        self.events_url = _endpoint(self._pub)
        self.replay_url = _endpoint(self._router)
        self._server = asyncio.ensure_future(self._serve_replays())

    async def subscribed(self) -> None:
        """Wait until somebody subscribes; what is published before does not reach them."""
        while (await self._pub.recv())[:1] != b"\x01":
            pass

    async def publish(self, *frames: Frame) -> None:
        for item in frames:
            item = Frame(item.seq, item.payload, self._topic)
            self.kept = [*self.kept, item][-self._buffer :]
            if not self.hides(item.seq):
                await self._pub.send_multipart(encode_frame(item))

    async def publish_raw(self, parts: list[bytes]) -> None:
        await self._pub.send_multipart(parts)

    async def close(self) -> None:
        """As if the engine died: connections break at once."""
        self._server.cancel()
        with suppress(asyncio.CancelledError):
            await self._server
        self._pub.close(linger=0)
        self._router.close(linger=0)

    async def _serve_replays(self) -> None:
        while True:
            peer, since = decode_replay_request(await self._router.recv_multipart())
            self.replays_asked.append(since)
            if self.is_mute:
                continue
            loses = self.loses_in_replay.pop(0) if self.loses_in_replay else lambda seq: False
            for item in self.kept:
                if item.seq >= since and not loses(item.seq):
                    await self._router.send_multipart([peer, *encode_replay(item)])
            await self._router.send_multipart([peer, *encode_replay(None)])


def _endpoint(socket: zmq.asyncio.Socket) -> str:
    raw = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(raw, bytes)
    return raw.rstrip(b"\0").decode()


async def eventually(
    claim: Callable[[], bool], what: str = "claim", deadline_s: float = 10.0
) -> None:
    """Poll until the claim holds; AssertionError after the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while not claim():
        assert loop.time() < end, f"{what} did not come true within {deadline_s} s"
        await asyncio.sleep(0.005)
