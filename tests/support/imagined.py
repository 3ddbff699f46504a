"""An engine's cache and its event stream without sockets, in virtual time, with all faults.

What is real: events as bytes, the pool that evicts. What is imagined: time, the network, the
engine's steps. Each life keeps what its cache held after each frame, so that a follower can be
compared at any moment with the very frame at which it stands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from router.blocks import AllBlocksCleared, BlockRemoved, BlockStored, Event, Frame
from router.events import Item, LinkDown, LinkUp, NoReplay, Quiet, ReplayUnavailable
from router.events.replay import in_rounds
from tests.support.events import BLOCK_SIZE, frame, prefix
from tests.support.lives import Life
from workers.engine.pool import BlockPool

QUIET_S: Final = 0.3
MARK: Final = 8
"""Frames of a replay's answer that surely come; of the rest some may be missing."""

MOST_DELAY_S: Final = 0.05
REPLY_S: Final = 5.0
_MASK: Final = 2**64 - 1


@dataclass(slots=True)
class Weather:
    """Chances per frame, if not said otherwise."""

    lose: float = 0.0
    hide: float = 0.0
    """Of lost frames: missing in the replay buffer too."""
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.0
    cut: float = 0.0
    """Per replay: it breaks off."""
    mute: float = 0.0
    """Per replay: no answer comes."""
    drop: float = 0.0
    """Per frame of a replay's answer beyond the `MARK`th."""


@dataclass(slots=True, eq=False)
class Connection:
    """One subscriber's, to one life."""

    life: Life
    items: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    is_subscribed: bool = False


class ImaginedEngine:
    """Computes prompts at once and publishes what that did to its cache."""

    def __init__(self, rng: Random, capacity: int, buffer: int) -> None:
        self._rng, self._capacity = rng, capacity
        self.weather = Weather()
        self.connections: list[Connection] = []
        self.lives: list[Life] = []
        self.kept: deque[Frame] = deque(maxlen=buffer)
        self.up = asyncio.Event()
        self.mute_until_s = 0.0
        self.log: deque[str] = deque(maxlen=120)
        self.revive()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def note(self, text: str) -> None:
        self.log.append(f"{_now():8.3f} {text}")

    def held(self) -> frozenset[int]:
        return frozenset(self.pool.copies())

    def revive(self) -> None:
        self.pool = BlockPool(self._capacity)
        self._pending: list[Event] = []
        self._late: Frame | None = None
        self.kept.clear()
        self.lives.append(Life(len(self.lives)))
        self.up.set()
        self.note(f"life {self.life.number}")

    def die(self) -> None:
        self.life.died_s = _now()
        self.up.clear()
        self.note("dies")
        for each in self.connections:
            if self._rng.random() < 0.5:  # what waits in a socket is dropped with it, or read first
                asyncio.get_running_loop().call_later(
                    self._rng.uniform(0, MOST_DELAY_S), each.items.put_nowait, LinkDown("lost")
                )
            else:
                each.items = asyncio.Queue()
                each.items.put_nowait(LinkDown("lost"))
        self.connections.clear()

    def reset(self) -> bool:
        """Announced with the next step's events."""
        if not self.pool.reset():
            return False
        self._pending.append(AllBlocksCleared())
        self.note("reset")
        return True

    def compute(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Blocks that were hit, and the blocks in use until `release`."""
        blocks = prefix(tokens)
        used = self.pool.match(blocks, (len(tokens) - 1) // BLOCK_SIZE)
        hit = len(used)
        self.pool.acquire(used)
        fresh = blocks[hit:]
        if len(fresh) <= self.pool.free_count:
            taken = self.pool.allocate(len(fresh))
            for block, value in zip(taken, fresh, strict=True):
                self.pool.store(block, value)
            used = [*used, *taken]
            handles = tuple(self._handle(value) for value in fresh)
            parent = self._handle(blocks[hit - 1]) if hit else None
            self._pending += [
                BlockRemoved((self._handle(value),)) for value in self.pool.take_evicted()
            ]
            if fresh:
                full = list(tokens[hit * BLOCK_SIZE : len(blocks) * BLOCK_SIZE])
                self._pending.append(BlockStored(handles, parent, full, BLOCK_SIZE))
        self._publish()
        return hit, used

    def release(self, life: Life, used: list[int]) -> None:
        """A request's answer has ended."""
        if life is self.life:
            self.pool.release(used)

    def _publish(self) -> None:
        events, self._pending = self._pending, []
        if not events:
            return
        life, weather, seq = self.life, self.weather, len(self.life)
        made = frame(seq, *events, ts=1e6 * life.number + seq)
        life.publish(made.payload, self.held(), _now())
        is_lost = self._strikes(weather.lose)
        if is_lost and self._strikes(weather.hide):
            life.hidden.append(seq)
        else:
            self.kept.append(made)
            if any(isinstance(event, AllBlocksCleared) for event in events):
                life.cleared = seq
        kinds = "+".join(type(event).__name__[:12] for event in events)
        self.note(f"frame {seq} of life {life.number}{' LOST' * is_lost}: {kinds}")
        if not is_lost:
            self._send_in_order(made)

    def _send_in_order(self, made: Frame) -> None:
        late, self._late = self._late, None
        if late is None and self._strikes(self.weather.reorder):
            self._late = made
            return
        self._send(made)
        if self._strikes(self.weather.duplicate):
            self._send(made)
        if late is not None:
            self._send(late)

    def _send(self, made: Frame) -> None:
        for each in self.connections:
            if each.is_subscribed:
                delay_s = self._rng.uniform(0, self.weather.delay_s)
                asyncio.get_running_loop().call_later(delay_s, each.items.put_nowait, made)

    def _handle(self, block: int) -> int:
        """This life's own hash of a block: lives share none."""
        return (block * 0x9E3779B97F4A7C15 + self.life.number * 0xBF58476D1CE4E5B9) & _MASK

    def _strikes(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance


class ImaginedSource:
    """`EventSource` of an imagined engine."""

    def __init__(self, engine: ImaginedEngine, rng: Random, *, has_replay: bool = True) -> None:
        self._engine, self._rng, self._has_replay = engine, rng, has_replay

    async def frames(self) -> AsyncGenerator[Item, None]:
        engine, rng = self._engine, self._rng
        while True:
            await engine.up.wait()
            connection = Connection(engine.life)
            engine.connections.append(connection)
            engine.note("link up")
            asyncio.get_running_loop().call_later(
                rng.choice([0.0, 0.0, 0.02]), setattr, connection, "is_subscribed", True
            )
            try:
                yield LinkUp()
                while True:
                    try:
                        async with asyncio.timeout(QUIET_S):
                            item: Item = await connection.items.get()
                    except TimeoutError:
                        item = Quiet()
                    if isinstance(item, LinkDown):
                        break
                    yield item
                engine.note("link down")
                yield item
            finally:
                if connection in engine.connections:
                    engine.connections.remove(connection)
            await asyncio.sleep(rng.uniform(0, 0.1))

    async def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        if not self._has_replay:
            raise NoReplay("no replay endpoint")
        async for each in in_rounds(self._ask, since, surely_whole=MARK):
            yield each

    async def _ask(self, since: int) -> AsyncGenerator[Frame, None]:
        engine, rng = self._engine, self._rng
        weather = engine.weather
        await asyncio.sleep(rng.choice([0.0, 0.001, 0.02]))
        if not engine.up.is_set() or rng.random() < weather.mute:
            engine.note(f"no answer to replay from {since}")
            wait_s = rng.choice([0.01, REPLY_S])
            engine.mute_until_s = max(engine.mute_until_s, _now() + wait_s)
            await asyncio.sleep(wait_s)
            raise ReplayUnavailable("no answer")
        answer, life = [each for each in engine.kept if each.seq >= since], engine.life
        engine.note(f"replay from {since} of life {life.number}: {len(answer)}")
        cut = rng.randrange(len(answer) + 1) if rng.random() < weather.cut else -1
        for number, each in enumerate(answer):
            if rng.random() < 0.05:
                await asyncio.sleep(0.005)
            if number == cut or (life is not engine.life and rng.random() < 0.2):
                raise ReplayUnavailable("it broke off")
            if number < MARK or rng.random() >= weather.drop:
                yield each


def _now() -> float:
    return asyncio.get_running_loop().time()
