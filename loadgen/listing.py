"""`warmgate-load workloads`: what can be sent, with which options, from which traces."""

from __future__ import annotations

import argparse

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.measure import Surroundings
from loadgen.options import UsageError
from loadgen.scenario import shipped
from loadgen.workload import formats
from loadgen.workload.catalogue import KINDS, TRACE


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `workloads`."""
    parser = commands.add_parser("workloads", help="list and describe what can be sent")
    parser.add_argument("name", nargs="?", help="only this one, with all its options")
    parser.set_defaults(run=run)


async def run(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """Always 0; UsageError for a name that is none."""
    if args.name is None:
        console.print(_all())
        console.print(_scenarios())
        return 0
    if args.name not in KINDS:
        raise UsageError(f"no workload {args.name!r}: one of {', '.join(KINDS)}")
    kind = KINDS[args.name]
    console.print(f"{args.name}: {kind.summary}", highlight=False)
    table = Table("option", "default", box=box.SIMPLE_HEAD)
    for name, value in kind.defaults().items():
        table.add_row("--" + name.replace("_", "-"), str(value))
    console.print(table)
    if args.name == TRACE:
        console.print(escape(formats.__doc__ or ""), highlight=False)
    return 0


def _all() -> Table:
    table = Table("workload", "what it is", box=box.SIMPLE_HEAD)
    for name, kind in KINDS.items():
        table.add_row(name, escape(kind.summary))
    return table


def _scenarios() -> Table:
    table = Table("--scenario", "what it is", box=box.SIMPLE_HEAD)
    for name, text in shipped().items():
        table.add_row(name, escape(text))
    return table
