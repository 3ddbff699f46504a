"""`warmgate-load sweep` and `search`: one workload at several loads, each with its own cold cache.

Every level sends texts of its own (another seed, another salt): what one level left in the cache
must not make the next one faster.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from loadgen.files import write_csv, write_json
from loadgen.measure import Measured, Surroundings, measure
from loadgen.options import UsageError, add_request_options, count, make_target, positive
from loadgen.page import Page, Run, write_html
from loadgen.recipes import add_workload_options, at_rate, workload_maker
from loadgen.report import DEFINITIONS, ms, print_definitions, print_verdicts, remarks, share
from loadgen.run import EXIT_SLO, add_target_options, target_settings, timestamp
from loadgen.slo import Verdict, judge
from loadgen.summary import Summary

SEED_STEP = 1000


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One load: `rate_per_s` (open loop) or `concurrency` (closed loop)."""

    rate_per_s: float | None = None
    concurrency: int | None = None
    slos: list[Verdict] = []
    summary: Summary

    @property
    def label(self) -> str:
        return f"{self.rate_per_s:g}/s" if self.rate_per_s else f"{self.concurrency} users"

    @property
    def is_good(self) -> bool:
        return all(one.is_met for one in self.slos)


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of `sweep` and `search`; `best` is the highest load that met all SLOs."""

    started_at: str
    url: str
    model: str
    parameters: dict[str, Any]
    levels: list[Level]
    best: float | None = None
    definitions: dict[str, str] = msgspec.field(default_factory=DEFINITIONS.copy)


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `sweep` and `search`."""
    parser = commands.add_parser("sweep", help="one workload at several rates or concurrencies")
    _add_common(parser)
    add = parser.add_argument_group("levels").add_argument
    add("--rates", type=_numbers, metavar="R,R…", help="requests per second, open loop")
    add("--concurrencies", type=_numbers, metavar="N,N…", help="users, closed loop")
    parser.set_defaults(run=sweep)
    parser = commands.add_parser("search", help="the highest rate that meets every --slo")
    _add_common(parser)
    add = parser.add_argument_group("levels").add_argument
    add("--min-rate", type=positive, default=0.5, help="requests per second; must be met")
    add("--max-rate", type=positive, default=64.0)
    add("--steps", type=count, default=6, help="runs after the first")
    add("--precision", type=positive, default=0.05, help="stop when the bounds are that near")
    parser.set_defaults(run=search)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_target_options(parser)
    add_workload_options(parser)
    add_request_options(parser)
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="all levels")
    add("--csv", type=Path, metavar="FILE", help="a row per level and metric")
    add("--html", type=Path, metavar="FILE", help="one page with plots, nothing to load")


async def sweep(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """3 if an SLO is missed at any level."""
    if bool(args.rates) == bool(args.concurrencies):
        raise UsageError("sweep needs --rates or --concurrencies")
    levels = Levels(args, around)
    for value in args.rates or args.concurrencies:
        if not around.stop.is_set():
            await levels.run(value, is_closed=bool(args.concurrencies))
    return levels.finish(console)


async def search(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """3 if not even the lowest rate meets the SLOs."""
    if not args.slo:
        raise UsageError("search needs --slo, e.g. --slo p95_ttft_ms=250")
    if args.min_rate >= args.max_rate:
        raise UsageError("--min-rate must be below --max-rate")
    levels = Levels(args, around)
    low, high = args.min_rate, args.max_rate
    if (await levels.run(low)).is_good:
        for step in range(args.steps):
            if high / low < 1 + args.precision or around.stop.is_set():
                break
            # The first step tries the highest; then halves, in the ratio.
            rate = high if step == 0 else math.sqrt(low * high)
            if (await levels.run(rate)).is_good:
                low = rate
            else:
                high = rate
            if low >= high:
                break
    code = levels.finish(console, is_search=True)
    best = levels.best()
    text = "not even the lowest rate meets the SLOs" if best is None else f"{best:.3g} requests/s"
    console.print(f"highest rate that meets the SLOs: {text}", highlight=False)
    return EXIT_SLO if best is None else code


class Levels:
    """Runs one workload at one load after the other."""

    def __init__(self, args: argparse.Namespace, around: Surroundings) -> None:
        self._args = args
        self._around = around
        self._recipe = workload_maker(args)
        self._target = make_target(args, args.url, args.model)
        self._settings = target_settings(args)
        self._started_at = timestamp()
        self._levels: list[Level] = []
        self._runs: list[Measured] = []

    async def run(self, value: float, is_closed: bool = False) -> Level:
        """One level; words per token are measured at the first."""
        settings = replace(
            self._settings,
            seed=self._settings.seed + SEED_STEP * len(self._levels),
            concurrency=round(value) if is_closed else None,
        )
        recipe = self._recipe if is_closed else at_rate(self._recipe, value)
        label = f"{value:g} users" if is_closed else f"{value:.3g}/s"
        measured = await measure(self._target, recipe, settings, self._around, label)
        self._settings = replace(self._settings, tokens_per_word=measured.tokens_per_word)
        level = Level(
            rate_per_s=None if is_closed else value,
            concurrency=round(value) if is_closed else None,
            slos=judge(measured.summary, dict(self._args.slo)),
            summary=measured.summary,
        )
        self._levels.append(level)
        self._runs.append(measured)
        return level

    def best(self) -> float | None:
        """The highest rate of which it and all lower ones met the SLOs."""
        best = None
        for level in sorted(self._levels, key=lambda one: one.rate_per_s or 0.0):
            if not level.is_good:
                return best
            best = level.rate_per_s
        return best

    def finish(self, console: Console, is_search: bool = False) -> int:
        """Print and write what there is; the exit code."""
        console.print(level_table(self._levels))
        for level in self._levels:
            if not is_search:
                print_verdicts(level.slos, console, f"{level.label}: ")
            for remark in remarks(level.summary):
                console.print(f"{level.label}: {remark}", highlight=False, markup=False)
        print_definitions(console)
        self._write(is_search)
        if is_search:
            return 0
        if any(level.summary.ok < level.summary.planned for level in self._levels):
            return 1
        return 0 if all(level.is_good for level in self._levels) else EXIT_SLO

    def _write(self, is_search: bool) -> None:
        args = self._args
        document = Sweep(
            started_at=self._started_at,
            url=args.url,
            model=args.model,
            parameters=self._parameters(),
            levels=self._levels,
            best=self.best() if is_search else None,
        )
        if args.json:
            write_json(args.json, document)
        if args.csv:
            write_csv(args.csv, {level.label: level.summary for level in self._levels})
        if args.html:
            write_html(args.html, self._page())

    def _parameters(self) -> dict[str, object]:
        first = self._runs[0].workload.parameters if self._runs else {}
        return {"workload": self._args.workload, "cache": self._settings.cache, **first}

    def _page(self) -> Page:
        pairs = zip(self._levels, self._runs, strict=True)
        runs = [
            Run(one.label, one.summary, run.counted.records, run.counted.planned)
            for one, run in pairs
        ]
        title = f"{self._args.workload} at several loads: {self._args.model}"
        table = {"Levels": [HEADS, *map(level_cells, self._levels)]}
        return Page(title, self._started_at, self._parameters(), runs, tables=table)


HEADS = (
    "load", "P50 TTFT, ms", "P95 TTFT, ms", "P95 (failed = inf)", "P50 ITL, ms", "out tok/s",
    "req/s", "hit rate", "errors", "client-bound", "SLO",
)  # fmt: skip


def level_cells(level: Level) -> Sequence[str]:
    """In the order of `HEADS`."""
    summary, latency = level.summary, level.summary.latency_ms
    verdict = ("met" if level.is_good else "MISSED") if level.slos else "-"
    return (
        level.label, ms(latency.ttft.p50), ms(latency.ttft.p95), ms(latency.ttft_failed_inf.p95),
        ms(latency.itl.p50), f"{summary.output_tokens_per_s:.1f}",
        f"{summary.requests_per_s:.2f}", share(summary.hit_rate),
        str(summary.planned - summary.ok), "YES" if summary.client.is_bound else "no", verdict,
    )  # fmt: skip


def level_table(levels: Sequence[Level]) -> Table:
    """A row per load."""
    table = Table(*HEADS, box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for level in levels:
        table.add_row(*level_cells(level))
    return table


def _numbers(text: str) -> list[float]:
    return [positive(part) for part in text.split(",")]
