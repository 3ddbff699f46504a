"""`warmgate-worker vllm [options] MODEL [vllm flags]`."""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from workers.launch.environment import cpu_environment, is_cpu_only
from workers.launch.flags import Flags, Launch, LaunchRefused, with_ports_chosen
from workers.launch.process import ReadyLine, run

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

USAGE_ERROR: Final = 2

_DESCRIPTION: Final = """\
Start `vllm serve MODEL [vllm flags]` with its cache made visible: KV events with replay,
prompt-token details, and a shutdown timeout so that it drains. When vLLM is healthy and the flags
are seen to have taken, one JSON line on stdout tells where it is reached. Signals are passed on;
the exit code is vLLM's. Options come before MODEL, vLLM's own flags after it.
"""


def add_parser(subparsers: "Subparsers") -> argparse.ArgumentParser:
    """Add the subcommand `vllm`; the parsed arguments carry `run`."""
    parser = subparsers.add_parser(
        "vllm",
        help="start vLLM with its cache made visible",
        description=_DESCRIPTION,
        usage="warmgate-worker vllm [options] MODEL [vllm flags]",
        allow_abbrev=False,
    )
    actions = [*_engine_options(parser), *_cpu_options(parser)]
    own_options = [name for action in actions for name in action.option_strings]
    parser.add_argument(
        "model", metavar="MODEL", help="what `vllm serve` takes: a name or a folder"
    )
    parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="vllm flags")
    parser.set_defaults(run=run_vllm, own_options=own_options)
    return parser


def _engine_options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    add = parser.add_argument
    yield add(
        "--vllm", default="vllm", metavar="PATH", help="the executable (default: vllm on PATH)"
    )
    yield add(
        "--events",
        default="tcp://*:5557",
        metavar="ENDPOINT",
        help="where vLLM publishes (default %(default)s); with a host for * it connects there",
    )
    yield add(
        "--replay",
        default="tcp://*:5657",
        metavar="ENDPOINT",
        help="where it answers replays (default %(default)s); port 0, in both: a free one",
    )
    yield add("--topic", default="kv-events", help="topic of the events (default %(default)s)")
    yield add(
        "--drain-timeout-s",
        type=int,
        default=30,
        metavar="N",
        help="after SIGTERM, requests in flight get this long (default %(default)s); 0 leaves "
        "vLLM's --shutdown-timeout out, for releases before 0.18",
    )
    yield add(
        "--start-timeout-s",
        type=float,
        default=1800.0,
        metavar="N",
        help="give up when vLLM is not healthy by then (default %(default)g)",
    )
    yield add(
        "--advertise",
        default="127.0.0.1",
        metavar="HOST",
        help="host in the addresses that are printed (default %(default)s)",
    )


def _cpu_options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    add = parser.add_argument
    yield add(
        "--cpu",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="settings for vLLM on a CPU (default: where no accelerator is found)",
    )
    yield add(
        "--cpu-cores", metavar="LIST", help="cores that compute, e.g. 0 or 0-3 (default: vLLM's)"
    )
    yield add(
        "--cpu-kv-gib",
        type=int,
        default=4,
        metavar="N",
        help="memory for the KV cache on a CPU, GiB (default %(default)s)",
    )


def run_vllm(args: argparse.Namespace) -> int:
    """Run what `add_parser` has parsed. 2: the flags contradict each other."""
    logging.basicConfig(format="warmgate-worker: %(message)s", stream=sys.stderr)
    try:
        launch = _launch(args)
        environ = _environment(args, launch)
        ends_with = run(
            launch,
            environ,
            _print_ready,
            advertise=args.advertise,
            start_timeout_s=args.start_timeout_s,
        )
        return asyncio.run(ends_with)
    except LaunchRefused as exc:
        sys.stderr.write(f"warmgate-worker vllm: {exc}\n")
        return USAGE_ERROR


def _launch(args: argparse.Namespace) -> Launch:
    after_model = Flags(args.flags)
    for name in args.own_options:
        if name in after_model:
            raise LaunchRefused(f"{name} is the launcher's: put it before MODEL")
    on_cpu = args.cpu if args.cpu is not None else is_cpu_only(lambda path: Path(path).exists())
    return with_ports_chosen(
        Launch(
            model=args.model,
            flags=tuple(args.flags),
            executable=args.vllm,
            events=args.events,
            replay=args.replay,
            topic=args.topic,
            drain_s=args.drain_timeout_s,
            on_cpu=on_cpu,
        ),
        SystemRandom(),
    )


def _environment(args: argparse.Namespace, launch: Launch) -> dict[str, str]:
    if not launch.on_cpu:
        return dict(os.environ)
    return cpu_environment(os.environ, launch.model, args.cpu_cores, args.cpu_kv_gib)


def _print_ready(line: ReadyLine) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
