"""The truth test in virtual time: a real keeper follows an imagined engine under all faults."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from router.events.keeper import Keeper
from router.events.protocol import EventSource
from router.events.snapshot import ReplicaSnapshot
from router.events.trust import Trust
from router.index import MemoryIndex
from router.replicas import Member, Replica
from router.replicas.breaker import Breaker
from tests.support.events import BLOCK_SIZE, prefix
from tests.support.imagined import MOST_DELAY_S, ImaginedEngine, ImaginedSource, Weather
from tests.support.lives import Life, Position, differs, place
from tests.support.virtual_time import run_virtually

NAME: Final = "a"
ROUND_S: Final = 1.0
BACK_WITHIN_S: Final = 5.0
UNSEEN_S: Final = 1.0
"""Longest time in which a frame that is lost, or a death, may go unnoticed."""

LOOK_EVERY_S: Final = 0.02
MOST_PROMPT_BLOCKS: Final = 7


@dataclass(slots=True)
class Outcome:
    """What one seed has shown."""

    lies: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    looks: int = 0
    exact_looks: int = 0
    requests: int = 0
    restarts: int = 0
    drifts: int = 0
    log: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Sources:
    source: EventSource

    async def open(self, replica: Replica) -> EventSource | None:
        return self.source


class ImaginedTrial:
    """One seed: some rounds of load and faults, then health."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = Random(seed)
        self._loop = asyncio.get_running_loop()
        self.outcome = Outcome()
        self._buffer = rng.choice([10_000, 10_000, 10_000, 12])
        self._has_replay = rng.random() < 0.9
        self.engine = ImaginedEngine(rng, rng.choice([12, 40]), self._buffer)
        self._told: tuple[Life, int] | None = None
        """A reset that the router made: until this life's frame it knows more than it was told."""
        self._seeds: dict[str, ReplicaSnapshot] = {}
        self._open({})

    async def run(self, rounds: int) -> Outcome:
        looking = asyncio.create_task(self._look_on())
        try:
            for _ in range(rounds):
                await self._round()
            await self._heal()
        finally:
            for task in (looking, self._keeping):
                task.cancel()
            await asyncio.gather(looking, self._keeping, return_exceptions=True)
        self.outcome.log = self.outcome.log or list(self.engine.log)
        return self.outcome

    def _open(self, seeds: dict[str, ReplicaSnapshot]) -> None:
        """A router begins."""
        self.index = MemoryIndex(clock=self._loop.time)
        source = ImaginedSource(self.engine, self._rng, has_replay=self._has_replay)
        slice_blocks = self._rng.choice([1, 100, 512])
        self.keeper = Keeper(
            self.index,
            _Sources(source),
            seeds=seeds,
            slice_blocks=slice_blocks,
            clock=self._loop.time,
        )
        replica = Replica(NAME, "http://a")
        self._member = Member(replica, 0.0, Breaker(self._loop.time), is_healthy=True)
        watched = self.keeper.of(NAME)
        self.trust = watched.trust
        self._keeping = asyncio.create_task(self.keeper.keep(self._member))

    async def _round(self) -> None:
        rng = self._rng
        self.engine.weather = Weather(
            lose=rng.choice([0.0, 0.05, 0.3]),
            hide=rng.choice([0.0, 0.0, 0.0, 0.5]),
            duplicate=rng.choice([0.0, 0.2]),
            reorder=rng.choice([0.0, 0.2]),
            delay_s=rng.choice([0.0, 0.0, MOST_DELAY_S]),
            cut=rng.choice([0.0, 0.2]),
            mute=rng.choice([0.0, 0.0, 0.2]),
            drop=rng.choice([0.0, 0.3]),
        )
        self.engine.note(f"{self.engine.weather}")
        clients = [asyncio.create_task(self._client(number)) for number in range(2)]
        await asyncio.sleep(ROUND_S * rng.random())
        await self._shock()
        await asyncio.gather(*clients)
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 2.0))

    async def _shock(self) -> None:
        engine, rng, draw = self.engine, self._rng, self._rng.random()
        if draw < 0.25:
            self.outcome.restarts += 1
            self.engine.die()
            await asyncio.sleep(rng.choice([0.0, 0.1, 0.4]))
            is_seen = rng.random() < 0.5
            if is_seen:
                self._say_healthy(False)
                await asyncio.sleep(0.1)
            self.engine.revive()
            if is_seen:
                await asyncio.sleep(rng.choice([0.0, 0.1]))
                self._say_healthy(True)
        elif draw < 0.5:
            if self.engine.reset() and draw < 0.35:
                self.engine.note("the router made the reset")
                self._told = self.engine.life, len(self.engine.life)
                self.index.clear(NAME)
                self.trust.note_forgotten()
        elif draw < 0.6:
            await self._restart_router()
        elif draw < 0.7:
            for _ in range(rng.choice([3, 8])):  # prompts that waited until they were evicted
                self.keeper.observe_hit(NAME, 5 * BLOCK_SIZE, 0, 0.0)
            engine.note(f"refuted: {self.trust.reason}")
            self.outcome.drifts += "short of predictions" in self.trust.reason
        elif draw < 0.8:
            self._seeds = {each.replica_id: each for each in await self.keeper.snapshot()}

    async def _restart_router(self) -> None:
        if self._rng.random() < 0.5:
            self._seeds = {each.replica_id: each for each in await self.keeper.snapshot()}
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self.engine.note(f"another router, with {len(self._seeds)} snapshots")
        self._told = None
        self._open(dict(self._seeds))

    def _say_healthy(self, is_healthy: bool) -> None:
        self._member.is_healthy = is_healthy
        self.keeper.health_changed(self._member)

    async def _client(self, number: int) -> None:
        end = self._loop.time() + ROUND_S
        while self._loop.time() < end:
            await self._ask(self._prompt(number))
            await asyncio.sleep(self._rng.uniform(0.02, 0.1))

    def _prompt(self, client: int) -> list[int]:
        kinds = [client, *(self._rng.randrange(2) for _ in range(self._rng.randrange(6)))]
        tokens = [kind * 100 + at for kind in kinds for at in range(BLOCK_SIZE)]
        return [*tokens, *range(self._rng.randrange(BLOCK_SIZE))]

    async def _ask(self, prompt: Sequence[int]) -> None:
        self._look()
        engine, rng = self.engine, self._rng
        asked_s = self._loop.time()
        held = self.index.match(prefix(prompt)).get(NAME, 0)
        predicted = min(held, (len(prompt) - 1) // BLOCK_SIZE)
        await asyncio.sleep(rng.uniform(0.0, 0.03))
        if not engine.up.is_set():
            return
        life = engine.life
        hit, used = engine.compute(prompt)
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        engine.release(life, used)
        if life is not engine.life:
            return
        self.outcome.requests += 1
        age_s = self._loop.time() - asked_s
        self.keeper.observe_hit(NAME, predicted * BLOCK_SIZE, hit * BLOCK_SIZE, age_s)

    async def _look_on(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        """Whoever says EXACT must hold what the engine held at the frame where it stands."""
        self.outcome.looks += 1
        trust = self.keeper.of(NAME).trust
        if trust.trust is not Trust.EXACT or self.outcome.lies:
            return
        self.outcome.exact_looks += 1
        standing = self.keeper.of(NAME).standing
        if standing is None:
            self._lie("nobody follows it")
        elif not standing.is_midway:
            self._compare(standing.tracker.position)

    def _compare(self, position: Position | None) -> None:
        where = place(self.engine.lives, position)
        if where is None:
            return self._lie(f"it stands at {position}, which nobody has published")
        life, seq = where
        if self._told is not None:
            if life is self._told[0] and seq < self._told[1]:
                return None
            self._told = None
        difference = differs(life, seq, self.index.blocks_of(NAME)) or self._is_old(life, seq)
        return self._lie(difference) if difference else None

    def _is_old(self, life: Life, seq: int) -> str:
        now_s = self._loop.time()
        if life.died_s is not None and now_s - life.died_s > UNSEEN_S:
            return f"life {life.number} died {now_s - life.died_s:.2f} s ago"
        news = [later for later in range(seq + 1, len(life)) if later not in life.hidden]
        if news and self._has_replay and now_s - life.published_s[news[0]] > UNSEEN_S:
            return f"at frame {seq} of life {life.number}, {news[0]} is old"
        return ""

    def _lie(self, text: str) -> None:
        self.engine.note(f"LIE: {text}")
        self.outcome.lies.append(text)
        self.outcome.log = list(self.engine.log)

    async def _heal(self) -> None:
        """No more faults: EXACT must be back, where the past can still be had."""
        self.engine.weather = Weather()
        self.engine.note("healed")
        for number in range(4):
            await self._ask(self._prompt(number % 2))
        life = self.engine.life
        healed_s = self._loop.time()
        while self._loop.time() - max(healed_s, self.engine.mute_until_s) < BACK_WITHIN_S:
            trust = self.keeper.of(NAME).trust
            if trust.trust is Trust.EXACT and self.index.blocks_of(NAME) == self.engine.held():
                return
            await asyncio.sleep(LOOK_EVERY_S)
        lost = [seq for seq in life.hidden if seq > life.cleared]
        is_all_kept = len(life) <= self._buffer and self._has_replay
        if not lost and is_all_kept:
            trust = self.keeper.of(NAME).trust
            self.outcome.late.append(f"{trust.trust} {trust.reason}")
            self.engine.note(f"LATE: {self.outcome.late[-1]}")


def imagine(seed: int, rounds: int = 4) -> Outcome:
    """Run one seed."""

    async def run() -> Outcome:
        return await ImaginedTrial(seed).run(rounds)

    return run_virtually(run)
