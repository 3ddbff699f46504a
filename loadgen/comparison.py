"""The same requests against several policies, each with empty caches, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.contenders import Contender
from loadgen.differences import Difference, clusters, differences
from loadgen.measure import Measured, Settings, Surroundings, measure
from loadgen.report import (
    DEFINITIONS,
    ms,
    overview,
    print_definitions,
    print_verdicts,
    remarks,
)
from loadgen.runner import RunResult
from loadgen.slo import Verdict, judge
from loadgen.summary import Rates, Summary, summarize
from loadgen.workload.catalogue import Recipe

if TYPE_CHECKING:
    from loadgen.client import Target

RANKS: Final = ("p50", "p90", "p95", "p99")


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's row of `runs[]` in the JSON file; `ttft_ms` has p50, p90, p95 and p99.

    `against_first`: differences from the first contender, with their intervals.
    """

    policy: str
    ttft_ms: dict[str, float | str | None]
    hit_rate: float | None
    hit_rate_bound: float | None
    errors: int
    output_tokens_per_s: float
    load_spread: float | None
    against_first: list[Difference] = []
    slos: list[Verdict] = []
    summary: Summary


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of `compare` and `demo`."""

    started_at: str
    parameters: dict[str, Any]
    runs: list[Column]
    definitions: dict[str, str] = msgspec.field(default_factory=DEFINITIONS.copy)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all contenders. `make_target`: (url, model) → target.

    `session_headers`: contender → header that carries the session's id to it.
    """

    make_target: MakeTarget
    recipe: Recipe
    settings: Settings
    session_headers: Mapping[str, str]
    repeats: int = 1
    slos: Mapping[str, float] = field(default_factory=dict)


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
        runs=_columns(done, plan),
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
            is_salted=not contender.is_fresh,
            tokenize_url=stack.tokenize_url,
            metrics_urls=stack.metrics_urls,
            replica_ids=stack.replica_ids,
        )
        target = plan.make_target(stack.url, stack.model)
        return await measure(target, plan.recipe, settings, around, label)


def pool(runs: Sequence[Measured]) -> Summary:
    """One summary of all repeats: samples are put together, never averaged."""
    if len(runs) == 1:
        return runs[0].summary
    ids = [share.id for share in runs[0].summary.replicas]
    first = runs[0].summary.goodput
    limits = None if first is None else first.limits_ms
    summary = summarize(joined([run.counted for run in runs]), ids, limits)
    # Repeats share one time axis: their arrivals must not be counted into one rate.
    return msgspec.structs.replace(
        summary, hit_rate_bound=_mean_bound(runs), rates=_mean_rates(runs)
    )


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


def difference_table(comparison: Comparison) -> Table:
    """What changed against the first contender, and whether it can be chance."""
    columns = ("against " + comparison.runs[0].policy, "figure", "change", "95 % interval", "")
    table = Table(*map(escape, columns), box=box.SIMPLE_HEAD)
    for row in difference_rows(comparison):
        table.add_row(*map(escape, row))
    return table


def difference_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """(contender, figure, change, interval, verdict)."""
    return [
        (run.policy, one.metric, _change(one), _interval(one), _word(one))
        for run in comparison.runs
        for one in run.against_first
        if one.difference is not None and (one.base or one.of)
    ]


def _change(one: Difference) -> str:
    ratio = "" if one.ratio is None or one.unit != "ms" else f" ({one.ratio:.2f}x)"
    return f"{one.difference:+.1f} {one.unit}{ratio}"


def _interval(one: Difference) -> str:
    return "-" if one.low is None else f"{one.low:+.1f} .. {one.high:+.1f}"


def _word(one: Difference) -> str:
    return "noise" if one.is_noise else "real"


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Tables, remarks by contender, definitions."""
    console.print(comparison_table(comparison))
    if difference_rows(comparison):
        console.print(difference_table(comparison))
    for run in comparison.runs:
        print_verdicts(run.slos, console, f"{run.policy}: ")
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
        "cache": settings.cache,
        "processes": settings.processes,
        "concurrency": settings.concurrency,
        "max_concurrency": settings.max_concurrency,
        "tokens_per_word": settings.tokens_per_word,
        "block_size": settings.block_size,
    }


def _columns(done: Mapping[str, Sequence[Measured]], plan: Plan) -> list[Column]:
    sides = {name: clusters([run.counted.records for run in found]) for name, found in done.items()}
    base = next(iter(sides), "")
    return [
        _column(
            name,
            pool(found),
            differences(sides[base], sides[name], plan.settings.seed) if name != base else [],
            plan.slos,
        )
        for name, found in done.items()
    ]


def _column(
    name: str, summary: Summary, against: list[Difference], slos: Mapping[str, float]
) -> Column:
    ttft = summary.latency_ms.ttft
    return Column(
        policy=name,
        ttft_ms={rank: getattr(ttft, rank) for rank in RANKS},
        hit_rate=summary.hit_rate,
        hit_rate_bound=summary.hit_rate_bound,
        errors=summary.errors,
        output_tokens_per_s=summary.output_tokens_per_s,
        load_spread=summary.load_spread,
        against_first=against,
        slos=judge(summary, slos),
        summary=summary,
    )


def joined(results: Sequence[RunResult]) -> RunResult:
    return RunResult(
        planned=sum(result.planned for result in results),
        records=[record for result in results for record in result.records],
        late_s=[late for result in results for late in result.late_s],
        cpu_s=[sum(each) for each in zip(*(result.cpu_s for result in results), strict=True)],
        events=sum(result.events for result in results),
        duration_s=sum(result.duration_s for result in results),
        whole_s=sum(result.whole_s for result in results),
        is_stopped=any(result.is_stopped for result in results),
    )


def _mean_bound(runs: Sequence[Measured]) -> float | None:
    """Weighted by prompt tokens: the bound of all repeats, each with its own fresh cache."""
    bounds = [(run.summary.hit_rate_bound, _prompt_tokens(run)) for run in runs]
    known = [(bound, tokens) for bound, tokens in bounds if bound is not None]
    total = sum(tokens for _, tokens in known)
    return round(sum(b * tokens for b, tokens in known) / total, 5) if total else None


def _mean_rates(runs: Sequence[Measured]) -> Rates:
    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(fmean(known), 3) if known else None

    rates = [run.summary.rates for run in runs]
    return Rates(mean([one.requested for one in rates]), mean([one.achieved for one in rates]))


def _prompt_tokens(run: Measured) -> int:
    return sum(record.prompt_tokens or 0 for record in run.result.records if record.is_ok)
