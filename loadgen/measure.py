"""One run against one target: the client, the workload, the bar, the figures."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from rich.console import Console

from loadgen.bound import find_bound, tokenizer_of
from loadgen.calibrate import single_token_words, tokens_per_word
from loadgen.client import Client, Clock, Target, open_client
from loadgen.crew import Job, run_crew
from loadgen.engines import counters, scrape
from loadgen.progress import open_watcher
from loadgen.quiet import quiet_gc
from loadgen.runner import Runner, RunOptions, RunResult
from loadgen.summary import Summary, summarize
from loadgen.text import Prose
from loadgen.window import Window
from loadgen.workload.catalogue import Recipe
from loadgen.workload.protocol import Session, Workload

SALT_TOKENS: Final = 8
COLD, WARM, AS_IS = "cold", "warm", "as-is"
CACHES: Final = (COLD, WARM, AS_IS)


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a run, beside target and workload. `tokens_per_word` None: measure it first.

    `cache`: "cold" and "warm" put a text nobody sent before in front of all prompts, unless
    `is_salted` says that the engines are fresh, and all contenders get the same bytes; "warm" then
    sends every session's first prompt once before the run (`prime_concurrency` at a time).
    `tokenize_url`: a server with /tokenize, to compute the hit-rate bound with; None leaves the
    bound out. `metrics_urls`: engines whose counters are read before and after.
    """

    seed: int = 0
    timeout_s: float = 600.0
    max_concurrency: int | None = None
    concurrency: int | None = None
    processes: int = 1
    session_header: str | None = None
    cache: str = COLD
    is_salted: bool = True
    prime_concurrency: int = 4
    window: Window = field(default_factory=Window)
    goodput_ms: Mapping[str, float] = field(default_factory=dict)
    tokens_per_word: float | None = None
    tokenizer: Path | None = None
    tokenize_url: str | None = None
    metrics_urls: tuple[str, ...] = ()
    block_size: int = 16
    replica_ids: tuple[str, ...] = ()

    @property
    def run_options(self) -> RunOptions:
        return RunOptions(
            max_concurrency=self.max_concurrency,
            concurrency=self.concurrency,
            session_header=self.session_header,
            keeps_prompts=self.tokenize_url is not None,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """A run's raw result, the counted part of it, its figures, and what they depend on."""

    result: RunResult
    counted: RunResult
    summary: Summary
    workload: Workload
    tokens_per_word: float
    salt: str
    seed: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run takes from the process it is in."""

    console: Console
    clock: Clock
    stop: asyncio.Event


async def measure(
    target: Target,
    recipe: Recipe,
    settings: Settings,
    around: Surroundings,
    label: str,
) -> Measured:
    """TargetError when the target doesn't answer the first probes."""
    async with open_client(target, around.clock, settings.timeout_s) as client:
        prose = await _prose(client, settings)
        key = f"salt {secrets.token_hex(8)}"
        words = prose.passage(key, SALT_TOKENS * prose.tokens_per_word)
        salt = words if settings.is_salted and settings.cache != AS_IS else ""
        play = _Play(recipe, prose, salt)
        if settings.cache == WARM:
            await _prime(client, play.workload(), settings, around)
        before = await scrape(settings.metrics_urls)
        result = await _run(client, play, settings, around, label)
        after = await scrape(settings.metrics_urls)
    counted = settings.window.of(result)
    summary = summarize(counted, settings.replica_ids, settings.goodput_ms)
    triples = zip(settings.metrics_urls, before, after, strict=True)
    summary = msgspec.structs.replace(summary, engines=[counters(*one) for one in triples])
    if settings.tokenize_url is not None and not around.stop.is_set():
        summary = await _with_bound(summary, result, counted, target, settings)
    factor = prose.tokens_per_word
    return Measured(result, counted, summary, play.workload(), factor, salt, settings.seed)


@dataclass(frozen=True, slots=True)
class _Play:
    """What is played, and in which words."""

    recipe: Recipe
    prose: Prose
    salt: str

    def workload(self) -> Workload:
        return self.recipe(self.prose, self.salt)

    def job(self, target: Target, settings: Settings) -> Job:
        prose = self.prose
        words = None if prose.vocabulary is None else tuple(prose.vocabulary)
        return Job(
            target=target,
            recipe=self.recipe,
            prose=(prose.seed, prose.tokens_per_word, words),
            salt=self.salt,
            options=settings.run_options,
            timeout_s=settings.timeout_s,
        )


async def _prose(client: Client, settings: Settings) -> Prose:
    if settings.tokenizer is not None:
        return Prose(settings.seed, 1.0, single_token_words(settings.tokenizer))
    factor = settings.tokens_per_word or await tokens_per_word(client, settings.seed)
    return Prose(settings.seed, factor)


class _Primed:
    """A workload's first prompts, each answered with one token: the cache fills, nothing else."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.name = workload.name
        self.parameters = workload.parameters
        self.requests = sum(1 for _ in workload.sessions())

    def sessions(self) -> Iterator[Session]:
        for session in self._workload.sessions():
            first = replace(session.turns[0], max_tokens=1, branches=())
            yield Session(session.id, 0.0, (first,))


async def _prime(
    client: Client, workload: Workload, settings: Settings, around: Surroundings
) -> None:
    options = RunOptions(concurrency=settings.prime_concurrency)
    primed = _Primed(workload)
    with open_watcher(around.console, "prime", primed.requests, around.clock) as watcher:
        await Runner(client, options, around.clock, watcher).run(primed, around.stop)


async def _run(
    client: Client, play: _Play, settings: Settings, around: Surroundings, label: str
) -> RunResult:
    workload = play.workload()
    with open_watcher(around.console, label, workload.requests, around.clock) as watcher:
        if settings.processes > 1:
            job = play.job(client.target, settings)
            return await run_crew(job, settings.processes, watcher, around.stop)
        with quiet_gc():
            runner = Runner(client, settings.run_options, around.clock, watcher)
            return await runner.run(workload, around.stop)


async def _with_bound(
    summary: Summary,
    result: RunResult,
    counted: RunResult,
    target: Target,
    settings: Settings,
) -> Summary:
    timeout = aiohttp.ClientTimeout(total=settings.timeout_s)
    numbers = None if counted is result else {record.number for record in counted.records}
    async with aiohttp.ClientSession(timeout=timeout) as session:
        tokenize = tokenizer_of(session, settings.tokenize_url or target.url, target)
        bound = await find_bound(result, tokenize, settings.block_size, numbers)
    if bound is None:
        return summary
    return msgspec.structs.replace(
        summary, hit_rate_bound=bound.rate, hit_rate_bound_method=bound.method
    )
