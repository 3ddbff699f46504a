"""`warmgate-worker engine`: flags with vLLM's names, one line of JSON when ready."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from router.blocks import Form
from workers.engine.faults import parse_faults
from workers.engine.options import EngineOptions
from workers.engine.profile import profile_names
from workers.engine.run import RunningEngine, run_engine

log = logging.getLogger(__name__)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "engine",
        help="run the embedded engine (no GPU, no weights)",
        description="Serve a paged prefix cache that behaves like vLLM's. Prints one line of JSON "
        "(url, events_url, replay_url, model, pid, ranks) when it is ready; logs go to stderr.",
        allow_abbrev=False,
    )
    _add_serving(parser)
    _add_events(parser)
    _add_sizes(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 2 if the settings contradict each other."""
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        options = read_options(arguments)
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            return runner.run(serve(options))
    except (ValueError, OSError) as exc:
        sys.stderr.write(f"warmgate-worker engine: {exc}\n")
        return 2


def read_options(arguments: argparse.Namespace) -> EngineOptions:
    """Options from parsed flags. ValueError names what is wrong."""
    values: dict[str, Any] = dict(vars(arguments))
    known = {name: values[name] for name in EngineOptions.__dataclass_fields__ if name in values}
    return EngineOptions(
        **known
        | {
            "model_names": tuple(arguments.model_names),
            "adapters": tuple(arguments.adapters),
            "answer_tokens": tuple(arguments.answer_tokens),
            "event_form": Form(arguments.event_form),
            "faults": parse_faults(arguments.faults),
        }
    )


async def serve(options: EngineOptions) -> int:
    """Serve, announce, wait for a signal, drain."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with run_engine(options) as running:
        sys.stdout.write(announcement(running) + "\n")
        sys.stdout.flush()
        await stop.wait()
        log.info("draining %d sequences", running.engine.load)
        if not await running.engine.drain(options.shutdown_timeout_s):
            log.warning("time is up: %d sequences are cut off", running.engine.load)
    return 0


def announcement(running: RunningEngine) -> str:
    """The line that says where everything is."""
    addresses = zip(running.events_urls, running.replay_urls, strict=True)
    return msgspec.json.encode(
        {
            "url": running.url,
            "events_url": running.events_url,
            "replay_url": running.replay_url,
            "model": running.model,
            "pid": os.getpid(),
            "ranks": [{"events_url": events, "replay_url": replay} for events, replay in addresses],
        }
    ).decode()


def _fast_loop() -> Any:
    try:
        import uvloop
    except ImportError:  # not available on every platform; asyncio's own loop does as well
        return None
    return uvloop.new_event_loop


def _add_serving(parser: argparse.ArgumentParser) -> None:
    defaults = EngineOptions()
    add = parser.add_argument_group("serving").add_argument
    add("--host", default=defaults.host, help="address of all sockets (default %(default)s)")
    _add_number(add, "--port", 8000, "HTTP; 0 takes a free one")
    add(
        "--served-model-name",
        "--model-name",
        dest="model_names",
        nargs="+",
        default=list(defaults.model_names),
        metavar="NAME",
        help=f"names of the model (default {defaults.model_names[0]})",
    )
    add(
        "--lora",
        dest="adapters",
        action="append",
        default=[],
        metavar="NAME",
        help="serve an adapter of this name (repeatable)",
    )
    add(
        "--answer-tokens",
        type=int,
        nargs=2,
        default=defaults.answer_tokens,
        metavar=("MIN", "MAX"),
        help="length of answers that end by themselves; 0 0: never (default 64 448)",
    )
    _add_number(add, "--max-num-queued-reqs", None, "answer 503 when so many wait")
    _add_number(
        add, "--shutdown-timeout-s", defaults.shutdown_timeout_s, "SIGTERM waits so long for ends"
    )
    add("--faults", default="{}", metavar="JSON", help="as POST /faults takes them")
    _add_number(add, "--seed", None, "of block hashes and faults; another one each time if absent")
    levels = ["debug", "info", "warning", "error"]
    add("--log-level", default="info", choices=levels, help="on stderr (default %(default)s)")


def _add_events(parser: argparse.ArgumentParser) -> None:
    defaults = EngineOptions()
    add = parser.add_argument_group("KV events").add_argument
    _add_number(add, "--events-port", 5557, "PUB; rank r adds r; 0 takes a free one")
    _add_number(add, "--replay-port", 5657, "ROUTER; rank r adds r; 0 takes a free one")
    add("--topic", default=defaults.topic, help="first part of each message (default empty)")
    _add_number(add, "--buffer-steps", defaults.buffer_steps, "batches kept for replay")
    add(
        "--event-form",
        choices=[form.value for form in Form],
        default=defaults.event_form.value,
        help="map: vLLM since 0.24; array: before (default %(default)s)",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    defaults = EngineOptions()
    group = parser.add_argument_group("speed and size (what is not given comes from the profile)")
    add = group.add_argument
    add(
        "--profile",
        default=defaults.profile,
        metavar="NAME",
        help=f"{', '.join(profile_names())}, or a file *.yaml (default %(default)s)",
    )
    _add_number(add, "--speed-up", defaults.speed_up, "modelled seconds per second")
    _add_number(add, "--block-size", defaults.block_size, "in tokens")
    _add_number(add, "--num-blocks", None, "of the KV cache, per rank")
    _add_number(add, "--max-num-seqs", None, "running at once, per rank")
    _add_number(add, "--max-num-batched-tokens", None, "computed per step")
    _add_number(add, "--max-model-len", None, "tokens of prompt and answer")
    _add_number(add, "--data-parallel-size", 1, "number of ranks")


def _add_number(
    add: Callable[..., argparse.Action], flag: str, default: float | None, text: str
) -> None:
    shown = "" if default is None else " (default %(default)s)"
    kind = float if isinstance(default, float) else int
    add(flag, type=kind, default=default, metavar="N", help=text + shown)
