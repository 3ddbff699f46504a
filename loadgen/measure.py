"""One run against one target: the client, the workload, the bar, the figures."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec
from rich.console import Console

from loadgen.bound import find_bound, tokenizer_of
from loadgen.calibrate import tokens_per_word
from loadgen.client import Client, Clock, Target, open_client
from loadgen.progress import open_watcher
from loadgen.runner import Runner, RunOptions, RunResult
from loadgen.summary import Summary, summarize
from loadgen.text import Prose
from loadgen.workload.protocol import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

SALT_TOKENS: Final = 8

MakeWorkload = Callable[[Prose, str], Workload]
"""(prose, salt) → a workload that begins every prompt with `salt`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a run, beside target and workload. `tokens_per_word` None: measure it first.

    `is_cold` puts a text nobody sent before in front of all prompts. `tokenize_url`: a server
    with /tokenize, to compute the hit-rate bound with; None leaves the bound out.
    """

    seed: int = 0
    timeout_s: float = 600.0
    max_concurrency: int | None = None
    session_header: str | None = None
    is_cold: bool = True
    tokens_per_word: float | None = None
    tokenize_url: str | None = None
    block_size: int = 16
    replica_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A run's raw result, its figures, and what they depend on."""

    result: RunResult
    summary: Summary
    workload: Workload
    tokens_per_word: float
    salt: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run takes from the process it is in."""

    console: Console
    clock: Clock
    stop: asyncio.Event


async def measure(
    target: Target,
    make_workload: MakeWorkload,
    settings: Settings,
    around: Surroundings,
    label: str,
) -> Measured:
    """TargetError when the target doesn't answer the first probes."""
    async with open_client(target, around.clock, settings.timeout_s) as client:
        factor = settings.tokens_per_word or await tokens_per_word(client, settings.seed)
        prose = Prose(settings.seed, factor)
        salt = prose.passage(f"salt {secrets.token_hex(8)}", SALT_TOKENS * factor)
        workload = make_workload(prose, salt if settings.is_cold else "")
        result = await _run(client, workload, settings, around, label)
    summary = summarize(result, settings.replica_ids)
    if settings.tokenize_url is not None and not around.stop.is_set():
        summary = await _with_bound(summary, result, target, settings)
    return Measured(result, summary, workload, factor, salt if settings.is_cold else "")


async def _run(
    client: Client, workload: Workload, settings: Settings, around: Surroundings, label: str
) -> RunResult:
    options = RunOptions(
        max_concurrency=settings.max_concurrency,
        session_header=settings.session_header,
        keeps_prompts=settings.tokenize_url is not None,
    )
    with (
        open_watcher(around.console, label, workload.requests, around.clock) as watcher,
        _quiet_gc(),
    ):
        return await Runner(client, options, around.clock, watcher).run(workload, around.stop)


async def _with_bound(
    summary: Summary, result: RunResult, target: Target, settings: Settings
) -> Summary:
    timeout = aiohttp.ClientTimeout(total=settings.timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        tokenize = tokenizer_of(session, settings.tokenize_url or target.url, target)
        bound = await find_bound(result, tokenize, settings.block_size)
    if bound is None:
        return summary
    return msgspec.structs.replace(
        summary, hit_rate_bound=bound.rate, hit_rate_bound_method=bound.method
    )


@contextmanager
def _quiet_gc() -> Iterator[None]:
    """A full collection over a large heap is a pause of tens of milliseconds: keep it out."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
