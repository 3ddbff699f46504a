"""The same requests against several policies, each with empty caches, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.measure import MakeWorkload, Measured, Settings, Surroundings, measure
from loadgen.report import DEFINITIONS, ms, overview, print_definitions, remarks
from loadgen.runner import RunResult
from loadgen.stack import Stack, StackOptions, open_stack
from loadgen.summary import Summary, summarize

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from loadgen.client import Target

RANKS: Final = ("p50", "p90", "p95", "p99")


class Contender(Protocol):
    """One column of the comparison: opens with empty caches, or with none that can match."""

    @property
    def name(self) -> str: ...

    @property
    def is_fresh(self) -> bool:
        """Nothing is cached when it opens, so `--cache cold` has nothing to keep out."""

    def open(self) -> AbstractAsyncContextManager[Stack]: ...


@dataclass(frozen=True, slots=True)
class PolicyContender:
    """A router with this policy over fresh embedded engines."""

    name: str
    options: StackOptions
    is_fresh: bool = True

    def open(self) -> AbstractAsyncContextManager[Stack]:
        return open_stack(self.options, self.name)


@dataclass(frozen=True, slots=True)
class UrlContender:
    """A server that runs already; `--cache cold` keeps its cache out of the figures."""

    name: str
    url: str
    model: str
    tokenize_url: str | None = None
    is_fresh: bool = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stack]:
        yield Stack(self.url, self.model, (), self.tokenize_url or self.url)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's row of `runs[]` in the JSON file; `ttft_ms` has p50, p90, p95 and p99."""

    policy: str
    ttft_ms: dict[str, float | str | None]
    hit_rate: float | None
    hit_rate_bound: float | None
    errors: int
    output_tokens_per_s: float
    load_spread: float | None
    summary: Summary


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of `compare` and `demo`."""

    started_at: str
    parameters: dict[str, object]
    runs: list[Column]
    definitions: dict[str, str] = msgspec.field(default_factory=DEFINITIONS.copy)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all contenders. `make_target`: (url, model) → target.

    `session_headers`: contender → header that carries the session's id to it.
    """

    make_target: MakeTarget
    make_workload: MakeWorkload
    settings: Settings
    session_headers: Mapping[str, str]
    repeats: int = 1


class MakeTarget(Protocol):
    """How requests to a stack look."""

    def __call__(self, url: str, model: str) -> Target: ...


async def compare(
    contenders: Sequence[Contender], plan: Plan, around: Surroundings
) -> tuple[Comparison, dict[str, list[Measured]]]:
    """Every contender `repeats` times, taking turns, so that a slow minute hits all alike.

    Words per token are measured once: every contender gets the same bytes. Also returns the raw
    runs by contender.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    runs: dict[str, list[Measured]] = {contender.name: [] for contender in contenders}
    for repeat in range(plan.repeats):
        shift = repeat % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            if around.stop.is_set():
                break
            measured = await _run_one(contender, plan, around, repeat)
            runs[contender.name].append(measured)
            plan = _with_factor(plan, measured.tokens_per_word)
    done = {name: found for name, found in runs.items() if found}
    first = next(iter(done.values()), [])
    comparison = Comparison(
        started_at=started_at,
        parameters=_parameters(plan, first),
        runs=[_column(name, pool(found)) for name, found in done.items()],
    )
    return comparison, done


async def _run_one(contender: Contender, plan: Plan, around: Surroundings, repeat: int) -> Measured:
    label = contender.name if plan.repeats == 1 else f"{contender.name} {repeat + 1}"
    async with contender.open() as stack:
        settings = replace(
            plan.settings,
            seed=plan.settings.seed + repeat,
            session_header=plan.session_headers.get(contender.name),
            # Salts differ, and so do their tokens: fresh engines all get the very same bytes.
            is_cold=plan.settings.is_cold and not contender.is_fresh,
            tokenize_url=stack.tokenize_url,
            replica_ids=stack.replica_ids,
        )
        target = plan.make_target(stack.url, stack.model)
        return await measure(target, plan.make_workload, settings, around, label)


def pool(runs: Sequence[Measured]) -> Summary:
    """One summary of all repeats: samples are put together, never averaged."""
    if len(runs) == 1:
        return runs[0].summary
    ids = [share.id for share in runs[0].summary.replicas]
    summary = summarize(_joined([run.result for run in runs]), ids)
    return msgspec.structs.replace(summary, hit_rate_bound=_mean_bound(runs))


def comparison_table(comparison: Comparison) -> Table:
    """Metrics down, contenders across; what decides comes first."""
    runs = comparison.runs
    table = Table("", *(escape(run.policy) for run in runs), box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("P95 TTFT, ms", *(ms(run.ttft_ms["p95"]) for run in runs), style="bold")
    for row in zip(*(overview(run.summary) for run in runs), strict=True):
        table.add_row(row[0][0], *(escape(value) for _, value in row))
    table.add_section()
    for name in ("ttft", "itl", "tpot", "e2e"):
        for rank in RANKS:
            cells = [getattr(getattr(run.summary.latency_ms, name), rank) for run in runs]
            table.add_row(f"{name.upper()} {rank.upper()}, ms", *map(ms, cells))
    return table


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Table, remarks by contender, definitions."""
    console.print(comparison_table(comparison))
    for run in comparison.runs:
        for remark in remarks(run.summary):
            console.print(escape(f"{run.policy}: {remark}"), highlight=False)
    print_definitions(console)


def _with_factor(plan: Plan, tokens_per_word: float) -> Plan:
    return replace(plan, settings=replace(plan.settings, tokens_per_word=tokens_per_word))


def _parameters(plan: Plan, runs: Sequence[Measured]) -> dict[str, object]:
    settings = plan.settings
    own = dict(runs[0].workload.parameters) if runs else {}
    return {
        "workload": runs[0].workload.name if runs else "",
        **own,
        "seed": settings.seed,
        "repeats": plan.repeats,
        "is_cold": settings.is_cold,
        "max_concurrency": settings.max_concurrency,
        "tokens_per_word": settings.tokens_per_word,
        "block_size": settings.block_size,
    }


def _column(name: str, summary: Summary) -> Column:
    ttft = summary.latency_ms.ttft
    return Column(
        policy=name,
        ttft_ms={rank: getattr(ttft, rank) for rank in RANKS},
        hit_rate=summary.hit_rate,
        hit_rate_bound=summary.hit_rate_bound,
        errors=summary.errors,
        output_tokens_per_s=summary.output_tokens_per_s,
        load_spread=summary.load_spread,
        summary=summary,
    )


def _joined(results: Sequence[RunResult]) -> RunResult:
    return RunResult(
        planned=sum(result.planned for result in results),
        records=[record for result in results for record in result.records],
        late_s=[late for result in results for late in result.late_s],
        cpu_s=sum(result.cpu_s for result in results),
        duration_s=sum(result.duration_s for result in results),
        is_stopped=any(result.is_stopped for result in results),
    )


def _mean_bound(runs: Sequence[Measured]) -> float | None:
    """Weighted by prompt tokens: the bound of all repeats, each with its own fresh cache."""
    bounds = [(run.summary.hit_rate_bound, _prompt_tokens(run)) for run in runs]
    known = [(bound, tokens) for bound, tokens in bounds if bound is not None]
    total = sum(tokens for _, tokens in known)
    return round(sum(b * tokens for b, tokens in known) / total, 5) if total else None


def _prompt_tokens(run: Measured) -> int:
    return sum(record.prompt_tokens or 0 for record in run.result.records if record.is_ok)
