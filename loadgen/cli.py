"""`warmgate-load`: load tests for OpenAI-compatible servers."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence

import uvloop
from rich.console import Console

from loadgen import compare, demo, listing, replay, rerender, run, sweep
from loadgen.calibrate import TargetError
from loadgen.crew import CrewError
from loadgen.files import FileError
from loadgen.measure import Surroundings
from loadgen.options import UsageError
from loadgen.scenario import expand
from loadgen.simulate import command as simulate
from loadgen.stack import StackError
from loadgen.workload.trace import TraceError

EXIT_USAGE = 2
EXIT_STOPPED = 130
PLAIN_WIDTH = 120
STOP_GRACE_S = 15.0
"""After a signal: time to print what there is and to end the processes that were started."""


def make_parser() -> argparse.ArgumentParser:
    """All commands; each sets `run` to a coroutine (args, console, surroundings) → exit code."""
    parser = argparse.ArgumentParser(prog="warmgate-load", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (run, compare, replay, demo, simulate, listing, rerender):
        command.add_parser(commands)
    sweep.add_parsers(commands)
    for one in commands.choices.values():
        one.allow_abbrev = False
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0: all answered; 1: something failed; 2: wrong options, or the target cannot be measured;
    3: an SLO is missed; 130: stopped by a signal."""
    try:
        words = expand(sys.argv[1:] if argv is None else argv)
        args = make_parser().parse_args(words)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(args))
    except (
        UsageError,
        TraceError,
        TargetError,
        StackError,
        FileError,
        CrewError,
        ValueError,
    ) as exc:
        sys.stderr.write(f"warmgate-load: {exc}\n")
        return EXIT_USAGE


async def _run(args: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    around = Surroundings(console=Console(stderr=True), clock=time.perf_counter, stop=stop)
    command = asyncio.ensure_future(args.run(args, _stdout(), around))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({command, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not command.done():
        await asyncio.wait({command}, timeout=STOP_GRACE_S)
        command.cancel()
    await asyncio.wait({command})
    if command.cancelled() or stop.is_set():
        return EXIT_STOPPED
    return int(command.result())


def _stdout() -> Console:
    """In a file or a pipe nobody can widen the window: wide enough for the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


if __name__ == "__main__":
    sys.exit(main())
