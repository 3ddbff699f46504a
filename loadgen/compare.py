"""`warmgate-load compare`: contenders and plan from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from loadgen.client import Target
from loadgen.comparison import (
    Comparison,
    Plan,
    compare,
    difference_rows,
    print_comparison,
)
from loadgen.contenders import Contender, PolicyContender, UrlContender
from loadgen.files import write_csv, write_json, write_jsonl
from loadgen.measure import Measured, Surroundings
from loadgen.options import (
    UsageError,
    add_request_options,
    count,
    make_settings,
    make_target,
    positive,
)
from loadgen.page import Page, Run, write_html
from loadgen.recipes import add_workload_options, workload_maker
from loadgen.scenario import add_scenario_option
from loadgen.stack import StackOptions

SESSION_HEADER: Final = "x-session-id"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `compare`."""
    parser = commands.add_parser("compare", help="several policies or servers, and what is noise")
    add_scenario_option(parser)
    add = parser.add_argument_group("contenders").add_argument
    add(
        "--policy", action="append", default=[], help="router policy over fresh engines; repeatable"
    )
    add(
        "--target",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="a running server; repeatable",
    )
    add("--model", default="embedded", help="model name at --target")
    add("--metrics-url", action="append", default=[], metavar="URL",
        help="an engine behind --target whose counters are read; repeatable")  # fmt: skip
    add("--tokenize-url", help="server with /tokenize for --target's hit-rate bound")
    add("--repeats", type=count, default=1, help="runs of each, taking turns")
    add("--session-header", default="auto", choices=("auto", "none", SESSION_HEADER),
        help="auto: x-session-id for the policy `session` only")  # fmt: skip
    add_stack_options(parser)
    add_workload_options(parser)
    add_request_options(parser)
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="the comparison")
    add("--jsonl-dir", type=Path, metavar="DIR", help="one record per request, a file each")
    add("--csv", type=Path, metavar="FILE", help="a row per contender and metric")
    add("--html", type=Path, metavar="FILE", help="one page with plots, nothing to load")
    parser.set_defaults(run=run)


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """The embedded engines that `--policy` starts."""
    add = parser.add_argument_group("engines").add_argument
    add("--replicas", type=count, default=4)
    add("--profile", default="a100-80-8b-bf16", help="how fast an engine pretends to be")
    add("--engine-speed-up", type=positive, default=1.0)
    add("--num-blocks", type=count, default=4096, help="cache blocks of each engine")
    add("--log-dir", type=Path, default=Path("build/logs"), help="what the processes print")


async def run(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """1 if a contender had an error; 3 if none had and one missed an SLO."""
    contenders = make_contenders(args)
    plan = make_plan(args, [contender.name for contender in contenders])
    comparison, runs = await compare(contenders, plan, around)
    if not comparison.runs:
        return 1
    print_comparison(comparison, console)
    if args.json:
        write_json(args.json, comparison)
    if args.jsonl_dir:
        for name, found in runs.items():
            records = [record for measured in found for record in measured.result.records]
            write_jsonl(args.jsonl_dir / f"{name}.jsonl", records)
    if args.csv:
        write_csv(args.csv, {run.policy: run.summary for run in comparison.runs})
    if args.html:
        write_html(args.html, make_page(comparison, runs))
    return exit_code(comparison)


def make_page(comparison: Comparison, runs: Mapping[str, Sequence[Measured]]) -> Page:
    """Plots show the first repeat of each; figures are of all."""
    firsts = {name: found[0].counted for name, found in runs.items()}
    shown = [
        Run(one.policy, one.summary, firsts[one.policy].records, firsts[one.policy].planned)
        for one in comparison.runs
    ]
    heads = ("", "figure", "change", "95 % interval", "")
    first = comparison.runs[0].policy
    return Page(
        title=f"Comparison: {', '.join(run.name for run in shown)}",
        started_at=comparison.started_at,
        parameters=comparison.parameters,
        runs=shown,
        tables={f"Changes against {first}": [heads, *difference_rows(comparison)]},
    )


def make_contenders(args: argparse.Namespace) -> list[Contender]:
    """UsageError when there is none, or two have one name."""
    options = StackOptions(
        log_dir=args.log_dir,
        replicas=args.replicas,
        profile=args.profile,
        speed_up=args.engine_speed_up,
        num_blocks=args.num_blocks,
        block_size=args.block_size,
    )
    contenders: list[Contender] = [PolicyContender(name, options) for name in args.policy]
    for text in args.target:
        name, equals, url = text.partition("=")
        if not equals:
            raise UsageError(f"--target {text}: NAME=URL")
        urls = tuple(args.metrics_url)
        contenders.append(UrlContender(name, url, args.model, args.tokenize_url, urls))
    if not contenders:
        raise UsageError("nothing to compare: give --policy or --target")
    if len({contender.name for contender in contenders}) < len(contenders):
        raise UsageError("two contenders have one name")
    return contenders


def make_plan(args: argparse.Namespace, names: Sequence[str]) -> Plan:
    """What the options say is the same for all."""

    def target(url: str, model: str) -> Target:
        return make_target(args, url, model)

    header = args.session_header
    with_header = {"auto": ["session"], "none": []}.get(header, list(names))
    return Plan(
        make_target=target,
        recipe=workload_maker(args),
        settings=make_settings(args),
        session_headers=dict.fromkeys(with_header, SESSION_HEADER),
        repeats=args.repeats,
        slos=dict(args.slo),
    )


def exit_code(comparison: Comparison) -> int:
    """1 if anything that was planned stayed without an answer; 3 if only an SLO was missed."""
    if any(run.errors or run.summary.unsent for run in comparison.runs):
        return 1
    missed = any(not one.is_met for run in comparison.runs for one in run.slos)
    return 3 if missed else 0
