"""`warmgate-load replay`: a trace with its own timing; short for `run --workload trace`."""

from __future__ import annotations

import argparse

from loadgen import run
from loadgen.workload.catalogue import TRACE


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `replay`: every option of `run`, and the file comes first."""
    parser = commands.add_parser("replay", help="a trace with its own timing")
    parser.add_argument("trace", metavar="FILE", help="mooncake, bailian, dynamo, azure, …")
    run.add_target_options(parser)
    run.add_load_options(parser)
    # After the options: their default for --trace must not undo the file.
    parser.set_defaults(run=run.run, workload=TRACE)
