"""Does the index tell the truth? Embedded engines under random load with faulty event streams.

In rounds: faults are drawn, requests run against them, engines restart or reset their caches; then
the load pauses, and an index that calls itself EXACT is compared with the engine's real cache,
block by block, first with the faults still on, then healed.
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
from router.events import DialTimes, IngestCounters, ReplicaTrust, Trust, ZmqDial, follow
from router.index import MemoryIndex
from workers.engine import EngineOptions, RunningEngine, run_engine
from workers.engine.faults import EventFaults, Faults

BLOCK_SIZE: Final = 16
TIMES: Final = DialTimes(quiet_s=0.3, retry_min_s=0.05, retry_max_s=0.2)
MOST_DELAY_MS: Final = 50
SETTLE_S: Final = 1.5
"""Longest time in which an idle engine's lost frames may go unnoticed, and be replayed."""

BACK_WITHIN_S: Final = 5.0
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
    comparisons: int = 0
    lies: list[str] = field(default_factory=list)
    """EXACT, and yet unlike the engine's cache."""
    late: list[str] = field(default_factory=list)
    slowest_return_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def right_share(self) -> float:
        return self.right / self.predicted if self.predicted else 1.0

    def count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1


@dataclass(slots=True)
class Subject:
    """One engine and what is believed of it."""

    name: str
    engine: RunningEngine
    index: MemoryIndex
    trust: ReplicaTrust
    counters: IngestCounters = field(default_factory=IngestCounters)
    replay_lies: bool = False
    pending: int = 0

    def differs(self) -> str:
        """Empty if the index holds just what the engine's cache holds."""
        real, known = set(self.engine.cached()), self.index.blocks_of(self.name)
        if real == known:
            return ""
        return f"{self.name}: {len(real - known)} unknown, {len(known - real)} gone"

    @property
    def is_exact(self) -> bool:
        return self.trust.trust is Trust.EXACT


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
        while time.monotonic() < end:
            await asyncio.gather(*(self._round(subject) for subject in self.subjects))
            self.findings.rounds += 1
        return self.findings

    async def _round(self, subject: Subject) -> None:
        self._break(subject)
        clients = [asyncio.create_task(self._client(subject, number)) for number in range(2)]
        await asyncio.sleep(ROUND_S * self._rng.random())
        await self._shock(subject)
        await asyncio.gather(*clients)
        await self._ask(subject, self._prompt(8))  # an idle engine does not tell of its reset
        await asyncio.sleep(SETTLE_S)
        self._compare(subject, "with faults")
        subject.engine.set_faults(Faults())
        await self._ask(subject, self._prompt(9))
        await self._return_to_exact(subject)

    def _break(self, subject: Subject) -> None:
        rng = self._rng
        lies = rng.random() < 0.1
        subject.replay_lies = subject.replay_lies or lies
        events = EventFaults(
            lose=rng.choice([0.0, 0.01, 0.05]),
            lose_from_replay=lies,
            duplicate=rng.choice([0.0, 0.05]),
            reorder=rng.choice([0.0, 0.05]),
            delay_ms=rng.choice([0.0, 0.0, rng.uniform(0, MOST_DELAY_MS)]),
        )
        subject.engine.set_faults(Faults(events=events))

    async def _shock(self, subject: Subject) -> None:
        draw = self._rng.random()
        if draw < 0.25:
            self.findings.count("restart")
            await subject.engine.restart(down_s=self._rng.choice([0.0, 0.1, 0.4]))
            events = subject.engine.engine.faults.current.events
            subject.replay_lies = events.lose_from_replay
        elif draw < 0.5:
            frames = subject.counters.frames
            async with self._http.post(f"{subject.engine.url}/reset_prefix_cache") as reply:
                was_reset = (await reply.json())["success"]
            # as if the router had made it; if a frame was faster than the reply, it told of the
            # reset, and of blocks that have been stored since
            if was_reset and draw < 0.4 and subject.counters.frames == frames:
                subject.index.clear(subject.name)
                subject.trust.note_forgotten()
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
        epoch, was_exact, asked_at = subject.trust.epoch, subject.is_exact, time.monotonic()
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
        if subject.trust.observe_hit(
            predicted // BLOCK_SIZE, hit // BLOCK_SIZE, time.monotonic() - asked_at
        ):
            subject.index.clear(subject.name)
        if was_exact and subject.is_exact and subject.trust.epoch == epoch:
            self.findings.predicted += 1
            self.findings.right += predicted == hit
            if predicted != hit:
                self.findings.wrong.append(f"{subject.name}: {predicted} predicted, {hit} real")

    def _compare(self, subject: Subject, when: str) -> None:
        if subject.is_exact:
            self.findings.comparisons += 1
            if difference := subject.differs():
                self.findings.lies.append(f"{difference}, {when}, {subject.counters}")

    async def _return_to_exact(self, subject: Subject) -> None:
        started = time.monotonic()
        while not (subject.is_exact and not subject.differs()):
            if time.monotonic() - started > BACK_WITHIN_S:
                if not subject.replay_lies:
                    self.findings.late.append(
                        f"{subject.differs()} {subject.trust.trust} {subject.trust.reason}"
                    )
                return
            await asyncio.sleep(0.02)
        self.findings.comparisons += 1
        took = time.monotonic() - started
        self.findings.slowest_return_s = max(self.findings.slowest_return_s, took)


@asynccontextmanager
async def trial(seed: int, engines: int = 2) -> AsyncIterator[Trial]:
    """Engines of their own, followed."""
    context = zmq.asyncio.Context()
    index = MemoryIndex(clock=time.monotonic)
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        followers, subjects, contexts = [], [], []
        try:
            for number in range(engines):
                running = run_engine(ENGINE)
                engine = await running.__aenter__()
                contexts.append(running)
                subject = Subject(f"r{number}", engine, index, ReplicaTrust(f"r{number}"))
                source = ZmqDial(context, engine.events_url, engine.replay_url, times=TIMES)
                work = follow(subject.name, source, index, subject.trust, subject.counters)
                followers.append(group.create_task(work))
                subjects.append(subject)
            yield Trial(subjects, http, Random(seed))
        finally:
            for task in followers:
                task.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
            for running in reversed(contexts):
                await running.__aexit__(None, None, None)
    context.destroy(linger=0)
