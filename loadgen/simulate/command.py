"""`warmgate-load simulate`: policies over workloads, in virtual time."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from loadgen.files import write_json
from loadgen.measure import Surroundings
from loadgen.options import UsageError
from loadgen.simulate import anchors, published, whatif
from loadgen.simulate.benchmark import Benchmark, Estimate, Row, goals, rows_of, verdicts
from loadgen.simulate.goals import Goal
from loadgen.simulate.suite import Case
from loadgen.simulate.trials import Catalogue, Here, Processes
from router.routing import POLICIES


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `simulate`."""
    parser = commands.add_parser("simulate", help="policies over workloads, in virtual time")
    add = parser.add_argument
    add("--case", action="append", metavar="NAME", help="a workload of the suite; repeatable")
    add("--list", action="store_true", help="list the suite and end")
    add("--policy", action="append", choices=sorted(POLICIES), help="repeatable; default: all")
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="adds a trace, in any format of `replay`: `trace`",
    )
    add("--seeds", type=int, default=3, metavar="N", help="runs of each, for intervals")
    add("--jobs", type=int, default=1, metavar="N", help="so many processes at once")
    add("--oracle-samples", type=int, default=150, metavar="N", help="regret of N requests a run")
    add("--replicas", type=int, help="instead of the workload's own number")
    add("--routers", type=int, help="so many routers, each with its own view")
    add("--share-load-ms", type=float, help="until a router knows what another has in flight")
    add("--slo-ttft-ms", type=float, help="wait in the router while no replica keeps it")
    add("--event-loss", type=float, help="share of event batches that are lost")
    add("--calibrate", action="store_true", help="compare with llm-d's ladders (of --policy), end")
    add("--anchors", type=Path, metavar="DIR", help="compare with toy policies on public traces")
    add("--what-if", action="store_true", help="which policy and how many replicas keep the SLO")
    add("--ttft-p95-ms", type=float, default=500.0, help="the SLO of --what-if")
    add("--json", type=Path, metavar="FILE", help="written after each row")
    add("--resume", action="store_true", help="go on from what FILE has of the same options")
    parser.set_defaults(run=run)


async def run(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """0; 1 if a goal was missed, or an anchor."""
    known = _catalogue(args).cases()
    if args.list:
        for case in known.values():
            console.print(f"{case.name}: {case.about}", highlight=False)
        return 0
    if args.calibrate:
        await asyncio.to_thread(_calibrated, args, console, around.console)
        return 0
    if args.anchors is not None:
        return await asyncio.to_thread(_anchored, args.anchors, console)
    chosen, policies = _chosen(args, known), args.policy or list(POLICIES)
    if args.what_if:
        await asyncio.to_thread(_what_if, chosen, policies, args.ttft_p95_ms, console)
        return 0
    rows = _earlier(args)
    if rows:
        around.console.print(f"{args.json} has {len(rows)} rows already")
    for case in chosen:
        known_rows = {row.policy for row in rows if row.case == case.name}
        missing = [policy for policy in policies if policy not in known_rows]
        await asyncio.to_thread(_run_case, args, case, missing, rows, around.console)
        wanted = [row for row in rows if row.case == case.name and row.policy in policies]
        console.print(_table(case, wanted))
    _print_verdicts(rows, console)
    found = goals(rows)
    _print_goals(found, console)
    return 0 if all(goal.is_met for goal in found) else 1


def _run_case(
    args: argparse.Namespace,
    case: Case,
    policies: Sequence[str],
    rows: list[Row],
    console: Console,
) -> None:
    """Each row is in the file as soon as it is whole."""
    workers = Processes(_catalogue(args), args.jobs) if args.jobs > 1 else Here({case.name: case})
    seeds, began = range(args.seeds), time.monotonic()
    for row in rows_of(case, policies, seeds, args.oracle_samples, console.print, workers):
        rows.append(row)
        console.print(
            f"  P95 {row.ttft_p95_ms.mean:,.0f} ms, hits {100 * row.hit_rate.mean:.1f} %,"
            f" {time.monotonic() - began:.0f} s since the case began",
            highlight=False,
        )
        if args.json:
            done = Benchmark(rows, verdicts(rows), goals(rows), _options(args))
            write_json(args.json, done)


def _options(args: argparse.Namespace) -> str:
    """Rows made with the same may stand in one table."""
    trace = args.trace.name if args.trace is not None else None
    changes = sorted(_catalogue(args).changes.items())
    return f"seeds {args.seeds}, oracle samples {args.oracle_samples}, trace {trace}, {changes}"


def _earlier(args: argparse.Namespace) -> list[Row]:
    """What a run that was cut short has left. UsageError if it had other options."""
    if not args.resume:
        return []
    if args.json is None:
        raise UsageError("--resume needs the --json FILE to go on from")
    if not args.json.exists():
        return []
    try:
        found = msgspec.json.decode(args.json.read_bytes(), type=Benchmark)
    except msgspec.DecodeError as exc:
        raise UsageError(f"{args.json} is no benchmark of policies: {exc}") from exc
    if found.options != _options(args):
        raise UsageError(f"{args.json} was made with {found.options}; not with {_options(args)}")
    return list(found.rows)


def _what_if(
    chosen: Sequence[Case], policies: Sequence[str], ttft_p95_ms: float, console: Console
) -> None:
    for case in chosen:
        fleets = whatif.smallest_fleets(case, policies, ttft_p95_ms)
        console.print(whatif.table_of(case, fleets, ttft_p95_ms))


def _calibrated(args: argparse.Namespace, console: Console, progress: Console) -> None:
    ladders, policies = [], args.policy or list(POLICIES)
    for ladder in published.ladders(range(1, args.seeds + 1), policies, progress.print):
        console.print(published.table_of(ladder))
        ladders.append(ladder)
    if not ladders:
        known = ", ".join(policy for policy, _ in published.LADDERS.values())
        raise UsageError(f"published are {known}; not {', '.join(policies)}")
    console.print(published.summary_of(ladders))


def _anchored(folder: Path, console: Console) -> int:
    """0; 1 if a hit rate is off by more than a point."""
    table, is_met = anchors.empty_table(), True
    for point in anchors.points(folder):
        anchors.add_row(table, point)
        is_met &= point.is_met
    if not table.row_count:
        raise UsageError(f"{folder} has none of {', '.join(anchors.FILES.values())}")
    console.print(table)
    return 0 if is_met else 1


def _catalogue(args: argparse.Namespace) -> Catalogue:
    changes = {
        "replicas": args.replicas,
        "routers": args.routers,
        "load_sharing_s": args.share_load_ms / 1e3 if args.share_load_ms is not None else None,
        "event_loss": args.event_loss,
        "slo_ttft_ms": args.slo_ttft_ms,
    }
    wanted = {name: value for name, value in changes.items() if value is not None}
    return Catalogue(args.trace, wanted)


def _chosen(args: argparse.Namespace, known: Mapping[str, Case]) -> list[Case]:
    names = args.case or list(known)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names]


def _table(case: Case, rows: Sequence[Row]) -> Table:
    table = Table(title=f"{case.name}: {case.about}", title_justify="left")
    columns = ("policy", "TTFT p95 ms", "p90", "mean", "TPOT ms", "hit %", "bound %", "out tok/s")
    for name in (*columns, "regret %"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        table.add_row(
            row.policy,
            _text(row.ttft_p95_ms),
            _text(row.ttft_p90_ms),
            _text(row.ttft_mean_ms),
            _text(row.tpot_mean_ms, digits=1),
            _text(row.hit_rate, 100, 1),
            _text(row.pooled_bound, 100, 1),
            _text(row.output_tokens_per_s),
            _text(row.regret, 100, 1),
        )
    return table


def _text(value: Estimate, scale: float = 1.0, digits: int = 0) -> str:
    text = f"{scale * value.mean:,.{digits}f}"
    if value.half_width is None:
        return text
    return f"{text} ±{scale * value.half_width:,.{digits}f}"


def _print_verdicts(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="cache-aware against the best policy and round robin, P95 TTFT")
    columns = ("case", "best", "over best %", "noise?", "over RR %", "of bound %", "regret %")
    for name in columns:
        table.add_column(name, justify="left" if name in ("case", "best") else "right")
    for one in verdicts(rows):
        table.add_row(
            one.case,
            one.best,
            f"{100 * one.over_best:.1f}",
            "yes" if one.is_within_noise else "no",
            f"{100 * one.over_control:.1f}",
            f"{100 * one.of_bound:.1f}",
            f"{100 * one.regret:.1f}",
        )
    if table.row_count:
        console.print(table)


def _print_goals(goals: Sequence[Goal], console: Console) -> None:
    if not goals:
        return
    table = Table(title=f"{sum(goal.is_met for goal in goals)} of {len(goals)} goals are met")
    for name in ("goal", "", "shown"):
        table.add_column(name)
    for goal in goals:
        table.add_row(goal.name, "met" if goal.is_met else "MISSED", goal.shown)
    console.print(table)
