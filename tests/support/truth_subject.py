"""The subjects of the truth test: what an engine really holds, what is believed, what went on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import zmq.asyncio

from router.blocks import Event, Frame
from router.events import DialTimes, EventSource, Item, ReplayUnavailable, Trust, ZmqDial
from router.events.keeper import Keeper, Watched
from router.index import MemoryIndex
from router.replicas import Replica
from tests.support.lives import Life, differs, place
from workers.engine import RunningEngine

TIMES: Final = DialTimes(quiet_s=0.3, retry_min_s=0.05, retry_max_s=0.2)
LOG_LINES: Final = 150


class Recorder:
    """What one engine publishes, and what its cache holds after each frame."""

    def __init__(self, engine: RunningEngine) -> None:
        self.lives = [Life()]
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self._engine = engine
        publisher = self._publisher = engine.engine.ranks[0].publisher
        self._publish, self._close, self._restart = (
            publisher.publish,
            publisher.close,
            publisher.restart,
        )
        publisher.publish = self.publish  # type: ignore[method-assign]
        publisher.close = self.close  # type: ignore[method-assign]
        publisher.restart = self.restart  # type: ignore[method-assign]

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def note(self, text: str) -> None:
        self.log.append(f"{time.monotonic():10.3f} {text}")

    def publish(self, events: Sequence[Event]) -> None:
        life, seq = self.life, len(self.life)
        self._publish(events)
        newest = self._publisher.newest
        if newest is None or newest.seq != seq:
            life.hidden.append(seq)
        payload = b"" if newest is None or newest.seq != seq else newest.payload
        life.publish(payload, frozenset(self._engine.cached()), time.monotonic())
        kinds = " ".join(type(event).__name__ for event in events)
        self.note(f"published {seq} of life {life.number}{', hidden' * (not payload)}: {kinds}")

    async def close(self) -> None:
        self.life.died_s = time.monotonic()
        self.note("dies")
        await self._close()

    async def restart(self) -> None:
        self.lives.append(Life(len(self.lives)))
        await self._restart()
        self.note(f"life {self.life.number}")


@dataclass(slots=True)
class Noted:
    """A source whose items are noted."""

    source: EventSource
    record: Recorder

    async def frames(self) -> AsyncGenerator[Item, None]:
        async with aclosing(self.source.frames()) as items:
            async for item in items:
                what = item.seq if isinstance(item, Frame) else type(item).__name__
                self.record.note(f"heard {what}")
                yield item

    async def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        heard: list[int] = []
        end = "to its end"
        try:
            async with aclosing(self.source.replay(since)) as frames:
                async for frame in frames:
                    heard.append(frame.seq)
                    yield frame
        except ReplayUnavailable as exc:
            end = str(exc)
            raise
        finally:
            span = f"{heard[0]} to {heard[-1]}" if heard else "nothing"
            self.record.note(f"replay from {since}: {span}, {end}")


@dataclass(slots=True)
class Sources:
    """Of replicas whose events are noted."""

    context: zmq.asyncio.Context
    records: dict[str, Recorder] = field(default_factory=dict)

    async def open(self, replica: Replica) -> EventSource | None:
        source = ZmqDial(self.context, replica.events_url or "", replica.replay_url, times=TIMES)
        return Noted(source, self.records[replica.id])


@dataclass(slots=True)
class Subject:
    """One engine and what is believed of it."""

    name: str
    engine: RunningEngine
    keeper: Keeper
    index: MemoryIndex
    record: Recorder
    told: tuple[Life, int] | None = None
    """A reset that the router made: until this life's frame it knows more than it was told."""
    shown: str = ""

    @property
    def watched(self) -> Watched:
        return self.keeper.of(self.name)

    @property
    def is_exact(self) -> bool:
        return self.watched.trust.trust is Trust.EXACT

    def known(self) -> set[int]:
        return self.index.blocks_of(self.name)

    def differs(self) -> str:
        """Empty if the index holds just what the engine's cache holds."""
        real, known = set(self.engine.cached()), self.known()
        if real == known:
            return ""
        return f"{self.name}: {len(real - known)} unknown, {len(known - real)} gone"

    def differs_from_its_frame(self) -> str:
        """Empty if the index holds just what the engine's cache held after the last frame taken."""
        standing = self.watched.standing
        if standing is None:
            return f"{self.name}: exact, and not followed"
        if standing.is_midway:
            return ""
        where = place(self.record.lives, standing.tracker.position)
        if where is None:
            return f"{self.name}: at a frame that was never published"
        life, seq = where
        if self.told is not None:
            if life is self.told[0] and seq < self.told[1]:
                return ""
            self.told = None
        difference = differs(life, seq, self.known())
        return f"{self.name}: {difference}" if difference else ""

    def is_untold(self) -> bool:
        """Is all that the follower lacks hidden from everybody?"""
        standing = self.watched.standing
        where = standing and place(self.record.lives, standing.tracker.position)
        if not where or where[0] is not self.record.life or self.told is not None:
            return False
        life, seq = where
        return len(life) > seq + 1 and life.hides_all_after(seq)

    def has_lost_for_good(self) -> bool:
        """Did something happen to its cache that nobody can ask for any more?"""
        life = self.record.life
        return any(seq > life.cleared for seq in life.hidden)

    def note_trust(self) -> None:
        trust = self.watched.trust
        now = f"{trust.trust} {trust.reason}"
        if now != self.shown:
            self.shown = now
            self.record.note(f"trust: {now}")
