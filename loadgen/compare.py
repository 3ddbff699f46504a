"""`warmgate-load compare`: contenders and plan from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from loadgen.client import Target
from loadgen.comparison import (
    Comparison,
    Contender,
    Plan,
    PolicyContender,
    UrlContender,
    compare,
    print_comparison,
)
from loadgen.measure import Surroundings
from loadgen.options import (
    UsageError,
    add_request_options,
    add_workload_options,
    count,
    make_settings,
    make_target,
    positive,
    workload_maker,
)
from loadgen.report import write_json, write_jsonl
from loadgen.stack import StackOptions

SESSION_HEADER: Final = "x-session-id"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `compare`."""
    parser = commands.add_parser("compare", help="several policies against fresh caches")
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
    add("--repeats", type=count, default=1, help="runs of each, taking turns")
    add("--session-header", default="auto", choices=("auto", "none", SESSION_HEADER),
        help="auto: x-session-id for the policy `session` only")  # fmt: skip
    add_stack_options(parser)
    add_workload_options(parser)
    add_request_options(parser)
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="the comparison")
    add("--jsonl-dir", type=Path, metavar="DIR", help="one record per request, a file each")
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
    """0 if no contender had an error, else 1."""
    contenders = make_contenders(args)
    plan = make_plan(args, [contender.name for contender in contenders])
    comparison, runs = await compare(contenders, plan, around)
    print_comparison(comparison, console)
    if args.json:
        write_json(args.json, comparison)
    if args.jsonl_dir:
        for name, found in runs.items():
            records = [record for measured in found for record in measured.result.records]
            write_jsonl(args.jsonl_dir / f"{name}.jsonl", records)
    return exit_code(comparison)


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
        contenders.append(UrlContender(name, url, args.model))
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
        make_workload=workload_maker(args),
        settings=make_settings(args),
        session_headers=dict.fromkeys(with_header, SESSION_HEADER),
        repeats=args.repeats,
    )


def exit_code(comparison: Comparison) -> int:
    """1 if anything that was planned stayed without an answer."""
    return int(any(run.errors or run.summary.unsent for run in comparison.runs))
