"""Does the index tell the truth? Embedded engines under random load with faulty event streams.

In rounds: faults are drawn, requests run against them, engines restart or reset their caches; then
the load pauses. All the time an index that calls itself EXACT is compared with what the engine's
cache held after the frame at which its follower stands; when the load pauses, with the engine's
real cache, block by block, first with the faults still on, then healed.

What nobody can know is no lie, and counted as `untold`: an engine's newest frames that were lost on
the way *and* are missing in its replay buffer. Even then just what the frame before them left must
be known, and a later frame, whose number shows the hole, must cost EXACT.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import aiohttp
import zmq.asyncio

from router.blocks import as_tokens, hash_blocks, prefix_seed
from router.events.keeper import Keeper
from router.index import MemoryIndex
from router.replicas import Member, Replica
from router.replicas.breaker import Breaker
from tests.support.truth_subject import Recorder, Sources, Subject
from workers.engine import EngineOptions, run_engine
from workers.engine.faults import EventFaults, Faults

BLOCK_SIZE: Final = 16
MOST_DELAY_MS: Final = 50
SETTLE_STEPS: Final = 15
SETTLE_STEP_S: Final = 0.1
"""Longest time in which an idle engine's lost frames may go unnoticed, and be replayed: in steps,
so that a moment in which the machine gave us nothing counts once."""

BACK_WITHIN_S: Final = 5.0
LOOK_EVERY_S: Final = 0.02
ROUND_S: Final = 2.0
THINK_S: Final = (0.06, 0.15)
ENGINE: Final = EngineOptions(num_blocks=240, max_num_seqs=8, speed_up=20.0)


@dataclass(slots=True)
class Findings:
    """What a run has seen."""

    rounds: int = 0
    requests: int = 0
    predicted: int = 0
    """Requests to replicas that were EXACT before and after."""
    right: int = 0
    looks: int = 0
    """Comparisons with what the engine held after the frame at which the follower stands."""
    comparisons: int = 0
    """Comparisons with the engine's real cache."""
    lies: list[str] = field(default_factory=list)
    """EXACT, and yet unlike the engine's cache."""
    late: list[str] = field(default_factory=list)
    untold: int = 0
    """Comparisons of what nobody could know."""
    slowest_return_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    logs: list[list[str]] = field(default_factory=list)
    """What went before each lie, and before each late return."""

    @property
    def right_share(self) -> float:
        return self.right / self.predicted if self.predicted else 1.0

    def count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1


class Trial:
    """One run: `subjects` under `rng`'s load and faults."""

    def __init__(self, subjects: list[Subject], http: aiohttp.ClientSession, rng: Random) -> None:
        self.subjects = subjects
        self.findings = Findings()
        self._http = http
        self._rng = rng
        self._segments = [
            [rng.randrange(1000, 40_000) for _ in range(rng.randrange(8, 80))] for _ in range(40)
        ]

    async def run(self, seconds: float) -> Findings:
        """Rounds until the time is over; the last one is finished."""
        end = time.monotonic() + seconds
        looking = asyncio.create_task(self._look_on())
        try:
            while time.monotonic() < end:
                await asyncio.gather(*(self._round(subject) for subject in self.subjects))
                self.findings.rounds += 1
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        return self.findings

    async def _round(self, subject: Subject) -> None:
        self._break(subject)
        clients = [asyncio.create_task(self._client(subject, number)) for number in range(2)]
        await asyncio.sleep(ROUND_S * self._rng.random())
        await self._shock(subject)
        await asyncio.gather(*clients)
        await self._ask(subject, self._prompt(8))  # an idle engine does not tell of its reset
        for _ in range(SETTLE_STEPS):
            await asyncio.sleep(SETTLE_STEP_S)
        self._compare(subject, "with faults")
        subject.engine.set_faults(Faults())
        subject.record.note("healed")
        await self._ask(subject, self._prompt(9))
        await self._return_to_exact(subject)

    def _break(self, subject: Subject) -> None:
        rng = self._rng
        events = EventFaults(
            lose=rng.choice([0.0, 0.01, 0.05]),
            lose_from_replay=rng.random() < 0.1,
            duplicate=rng.choice([0.0, 0.05]),
            reorder=rng.choice([0.0, 0.05]),
            delay_ms=rng.choice([0.0, 0.0, rng.uniform(0, MOST_DELAY_MS)]),
        )
        subject.engine.set_faults(Faults(events=events))
        subject.record.note(f"{events}")

    async def _shock(self, subject: Subject) -> None:
        draw = self._rng.random()
        if draw < 0.25:
            self.findings.count("restart")
            await subject.engine.restart(down_s=self._rng.choice([0.0, 0.1, 0.4]))
        elif draw < 0.5:
            frames = subject.watched.counters.frames
            async with self._http.post(f"{subject.engine.url}/reset_prefix_cache") as reply:
                was_reset = (await reply.json())["success"]
            # as if the router had made it; if a frame was faster than the reply, it told of the
            # reset, and of blocks that have been stored since
            subject.record.note(f"reset: {was_reset}")
            if was_reset and draw < 0.4 and subject.watched.counters.frames == frames:
                subject.told = subject.record.life, len(subject.record.life)
                subject.index.clear(subject.name)
                subject.watched.trust.note_forgotten()
                subject.record.note("the router made it")
            self.findings.count(f"reset {was_reset}")
        else:
            self.findings.count("no shock")

    async def _client(self, subject: Subject, number: int) -> None:
        end = time.monotonic() + ROUND_S
        while time.monotonic() < end:
            await self._ask(subject, self._prompt(number))
            await asyncio.sleep(self._rng.uniform(*THINK_S))

    def _prompt(self, client: int) -> list[int]:
        """Some of few segments in a row, so that prompts share beginnings; clients share none."""
        chosen = [self._rng.randrange(4) * 10 + depth for depth in range(self._rng.randrange(1, 6))]
        return [client + 1] + [token for each in chosen for token in self._segments[each % 40]]

    async def _ask(self, subject: Subject, prompt: list[int]) -> None:
        salt = self._rng.choice([None, None, "tenant"])
        seed = prefix_seed(salt)
        prefix = hash_blocks(as_tokens(prompt), BLOCK_SIZE, seed)
        trust = subject.watched.trust
        epoch, was_exact, asked_at = trust.epoch, subject.is_exact, time.monotonic()
        held = subject.index.match(prefix).get(subject.name, 0)
        predicted = min(held, (len(prompt) - 1) // BLOCK_SIZE) * BLOCK_SIZE
        body: dict[str, Any] = {
            "model": subject.engine.model,
            "prompt": prompt,
            "max_tokens": self._rng.randrange(1, 24),
        }
        if salt:
            body["cache_salt"] = salt
        try:
            url = f"{subject.engine.url}/v1/completions"
            async with self._http.post(url, json=body) as reply:
                answer = await reply.json()
            hit = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        except (aiohttp.ClientError, KeyError, TypeError):
            return  # it restarted
        self.findings.requests += 1
        subject.keeper.observe_hit(subject.name, predicted, hit, time.monotonic() - asked_at)
        if 2 * hit < predicted:
            subject.record.note(f"{predicted} tokens predicted, {hit} hit")
        if was_exact and subject.is_exact and trust.epoch == epoch:
            self.findings.predicted += 1
            self.findings.right += predicted == hit
            if predicted != hit:
                self.findings.wrong.append(f"{subject.name}: {predicted} predicted, {hit} real")

    async def _look_on(self) -> None:
        while True:
            for subject in self.subjects:
                subject.note_trust()
                if subject.is_exact:
                    self.findings.looks += 1
                    if difference := subject.differs_from_its_frame():
                        self._lie(subject, difference)
            await asyncio.sleep(LOOK_EVERY_S)

    def _compare(self, subject: Subject, when: str) -> None:
        if not subject.is_exact:
            return
        self.findings.comparisons += 1
        if difference := subject.differs():
            if subject.is_untold():
                self.findings.untold += 1
            else:
                self._lie(subject, f"{difference}, {when}")

    def _lie(self, subject: Subject, what: str) -> None:
        subject.record.note(f"LIE: {what}")
        if not self.findings.lies or not self.findings.lies[-1].startswith(what):
            self.findings.lies.append(f"{what}, {subject.watched.counters}")
            self.findings.logs.append(list(subject.record.log))

    async def _return_to_exact(self, subject: Subject) -> None:
        started = time.monotonic()
        while not (subject.is_exact and not subject.differs()):
            if time.monotonic() - started > BACK_WITHIN_S:
                self._compare(subject, "healed")
                if not subject.has_lost_for_good():
                    trust = subject.watched.trust
                    self.findings.late.append(f"{subject.differs()} {trust.trust} {trust.reason}")
                    self.findings.logs.append(list(subject.record.log))
                return
            await asyncio.sleep(LOOK_EVERY_S)
        self.findings.comparisons += 1
        took = time.monotonic() - started
        self.findings.slowest_return_s = max(self.findings.slowest_return_s, took)


@asynccontextmanager
async def trial(seed: int, engines: int = 2) -> AsyncIterator[Trial]:
    """Engines of their own, followed."""
    context = zmq.asyncio.Context()
    index = MemoryIndex(clock=time.monotonic)
    sources = Sources(context)
    keeper = Keeper(index, sources)
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        keeping, subjects, contexts = [], [], []
        try:
            for number in range(engines):
                running = run_engine(ENGINE)
                engine = await running.__aenter__()
                contexts.append(running)
                name = f"r{number}"
                sources.records[name] = Recorder(engine)
                replica = Replica(name, engine.url, engine.events_url, engine.replay_url)
                member = Member(replica, 0.0, Breaker(time.monotonic), is_healthy=True)
                keeping.append(group.create_task(keeper.keep(member)))
                subjects.append(Subject(name, engine, keeper, index, sources.records[name]))
            yield Trial(subjects, http, Random(seed))
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            for running in reversed(contexts):
                await running.__aexit__(None, None, None)
    context.destroy(linger=0)
