"""`warmgate-worker engine`: flags with vLLM's names, one line of JSON when ready."""

import argparse
import asyncio
import logging
import os
import signal
import sys
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
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
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
    group = parser.add_argument_group("serving")
    group.add_argument("--host", default=defaults.host, help="address of all sockets")
    group.add_argument("--port", type=int, default=8000, help="HTTP; 0 takes a free port")
    group.add_argument(
        "--served-model-name",
        "--model-name",
        dest="model_names",
        nargs="+",
        default=list(defaults.model_names),
        metavar="NAME",
        help="names of the model",
    )
    group.add_argument(
        "--lora",
        dest="adapters",
        action="append",
        default=[],
        metavar="NAME",
        help="serve an adapter of this name (repeatable)",
    )
    group.add_argument(
        "--answer-tokens",
        type=int,
        nargs=2,
        default=defaults.answer_tokens,
        metavar=("MIN", "MAX"),
        help="length of answers that end by themselves; 0 0: never",
    )
    group.add_argument(
        "--max-num-queued-reqs", type=int, default=None, help="answer 503 beyond so many waiting"
    )
    group.add_argument(
        "--shutdown-timeout-s",
        type=float,
        default=defaults.shutdown_timeout_s,
        help="how long SIGTERM waits for running requests",
    )
    group.add_argument("--faults", default="{}", metavar="JSON", help="as POST /faults takes them")
    group.add_argument("--seed", type=int, default=None, help="of block hashes and faults")
    group.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="stderr"
    )


def _add_events(parser: argparse.ArgumentParser) -> None:
    defaults = EngineOptions()
    group = parser.add_argument_group("KV events")
    group.add_argument("--events-port", type=int, default=5557, help="PUB; rank r adds r")
    group.add_argument("--replay-port", type=int, default=5657, help="ROUTER; rank r adds r")
    group.add_argument("--topic", default=defaults.topic, help="first frame of each message")
    group.add_argument(
        "--buffer-steps", type=int, default=defaults.buffer_steps, help="batches kept for replay"
    )
    group.add_argument(
        "--event-form",
        choices=[form.value for form in Form],
        default=defaults.event_form.value,
        help="map: vLLM since 0.24; array: before",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    defaults = EngineOptions()
    group = parser.add_argument_group("speed and size (what is not given comes from the profile)")
    group.add_argument(
        "--profile",
        default=defaults.profile,
        help=f"one of {', '.join(profile_names())}, or a file *.yaml",
    )
    group.add_argument(
        "--speed-up", type=float, default=defaults.speed_up, help="modelled seconds per second"
    )
    group.add_argument("--block-size", type=int, default=defaults.block_size, help="in tokens")
    group.add_argument("--num-blocks", type=int, default=None, help="of the KV cache, per rank")
    group.add_argument("--max-num-seqs", type=int, default=None, help="running at once, per rank")
    group.add_argument("--max-num-batched-tokens", type=int, default=None, help="per step")
    group.add_argument("--max-model-len", type=int, default=None, help="prompt and answer")
    group.add_argument("--data-parallel-size", type=int, default=1, help="number of ranks")
