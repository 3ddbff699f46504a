"""From the command line to a workload: which flags there are, and what is made of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from loadgen.arrival import ARRIVALS, RAMPS, Arrivals, Ramp
from loadgen.options import UsageError, count, natural, positive
from loadgen.workload.catalogue import KINDS, TRACE, Recipe
from loadgen.workload.formats import FORMATS
from loadgen.workload.trace import TraceOptions, read_trace


def order(text: str) -> str:
    """Of retrieved documents."""
    if text not in ("shuffled", "sorted"):
        raise argparse.ArgumentTypeError("shuffled or sorted")
    return text


CONTENT: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "turns": (count, "requests of a conversation or task"),
    "think_s": (float, "mean pause after an answer; for agents, a tool's time"),
    "shared_tokens": (natural, "system prompt that all have in common"),
    "system_tokens": (count, "system prompt of each conversation"),
    "user_tokens": (count, "what the user says"),
    "first_user_tokens": (count, "what the user says first, if it differs"),
    "groups": (natural, "different prefixes, or repositories; 0: each conversation its own"),
    "questions": (natural, "of a group, that come again; 0: all are new"),
    "zipf": (float, "skew of what is popular; 0 is even"),
    "prefix_tokens": (count, "system prompt that a group, or all, have in common"),
    "question_tokens": (count, "what is of each request's own"),
    "front_tokens": (natural, "before the timestamp"),
    "stamp_tokens": (count, "of the timestamp and its like"),
    "documents": (count, "how many there are"),
    "document_tokens": (count, "length of each"),
    "retrieved": (count, "documents in a prompt"),
    "order": (order, "shuffled | sorted: documents as ranked, or always alike"),
    "tools_tokens": (count, "instructions and tools that all agents have in common"),
    "context_tokens": (count, "a repository's own instructions"),
    "result_tokens": (count, "what a tool gives back"),
    "sub_agents": (natural, "that work side by side, half way"),
    "sub_turns": (count, "requests of each"),
    "output_tokens": (count, "length of an answer"),
}


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """`--workload`, its arrivals, and what each kind takes."""
    add = parser.add_argument_group("workload").add_argument
    add("--workload", choices=tuple(KINDS), default="multi-turn")
    add("--num-requests", type=count, help="default: 200, or all rows of a trace")
    add("--seed", type=int, default=0, help="same seed, same requests")
    for name, (kind, text) in CONTENT.items():
        add(_flag(name), type=kind, help=f"{text} ({_defaults(name)})")
    add_arrival_options(parser)
    add_trace_options(parser)


def add_arrival_options(parser: argparse.ArgumentParser) -> None:
    """When requests come."""
    add = parser.add_argument_group("arrival").add_argument
    rate = "requests per second, default 4, or inf; for a trace: instead of its own times"
    add("--request-rate", type=positive, help=rate)
    add("--session-rate", type=positive, help="conversations (multi-turn) started per second")
    add("--arrival", choices=ARRIVALS, default="poisson")
    add("--burstiness", type=positive, default=1.0,
        help="gamma shape of the gaps; below 1 is burstier")  # fmt: skip
    add("--ramp-up-strategy", choices=RAMPS, help="how the rate changes")
    add("--ramp-up-start-rps", type=positive, help="rate at the beginning")
    add("--ramp-up-end-rps", type=positive, help="rate at the ramp's end and after it")
    add("--ramp-up-s", type=positive, help="how long the rate changes")
    add("--concurrency", type=count,
        help="closed loop: that many users, each begins when its last one ended")  # fmt: skip


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """How a trace is read and replayed."""
    add = parser.add_argument_group("trace").add_argument
    add("--trace", metavar="FILE", help="see `warmgate-load workloads` for the formats")
    add("--trace-format", choices=("auto", *FORMATS), default="auto")
    add("--trace-scale", type=positive, default=1.0, help="0.1: all lengths a tenth")
    add("--trace-block-tokens", type=count, help="tokens that a hash id stands for")
    add("--speed-up", "--time-scale", type=positive, default=1.0, help="2: pauses half as long")
    add("--max-idle-gap-s", type=positive, help="no longer pause between two requests")
    add("--max-input-tokens", type=count,
        help="leave out rows with longer prompts (after scaling)")  # fmt: skip


def workload_maker(args: argparse.Namespace) -> Recipe:
    """Reads the trace now, so that a bad file is known before anything starts. UsageError."""
    if args.workload == TRACE:
        return _trace(args)
    if args.trace:
        raise UsageError("--trace needs --workload trace")
    kind = KINDS[args.workload]
    known = {field.name for field in fields(kind.options)}
    given = {name: getattr(args, name) for name in CONTENT if getattr(args, name) is not None}
    if strange := [_flag(name) for name in given if name not in known]:
        raise UsageError(f"{', '.join(strange)}: not for --workload {args.workload}")
    options = kind.options(requests=args.num_requests or 200, **given)
    return Recipe(args.workload, replace(options, arrivals=_arrivals(args, options)))


def at_rate(recipe: Recipe, rate_per_s: float) -> Recipe:
    """The same requests at another rate; a trace's times are drawn anew."""
    arrivals = recipe.options.arrivals or Arrivals()
    changed = replace(arrivals, rate_per_s=rate_per_s, ramp=None)
    return replace(recipe, options=replace(recipe.options, arrivals=changed))


def _arrivals(args: argparse.Namespace, options: Any) -> Arrivals:
    rate = args.request_rate
    if args.session_rate:
        if rate:
            raise UsageError("--session-rate and --request-rate exclude each other")
        rate = args.session_rate * getattr(options, "turns", 1)
    return Arrivals(
        rate_per_s=rate or 4.0, kind=args.arrival, burstiness=args.burstiness, ramp=_ramp(args)
    )


def _ramp(args: argparse.Namespace) -> Ramp | None:
    if args.ramp_up_strategy is None:
        return None
    start, end, seconds = args.ramp_up_start_rps, args.ramp_up_end_rps, args.ramp_up_s
    if None in (start, end, seconds):
        needed = "--ramp-up-start-rps, --ramp-up-end-rps and --ramp-up-s"
        raise UsageError(f"--ramp-up-strategy needs {needed}")
    return Ramp(strategy=args.ramp_up_strategy, start_per_s=start, end_per_s=end, seconds=seconds)


def _trace(args: argparse.Namespace) -> Recipe:
    if not args.trace:
        raise UsageError("--workload trace needs --trace FILE")
    has_times = args.request_rate is None and args.ramp_up_strategy is None
    options = TraceOptions(
        path=args.trace,
        requests=args.num_requests,
        scale=args.trace_scale,
        speed_up=args.speed_up,
        max_idle_gap_s=args.max_idle_gap_s,
        arrivals=None if has_times else _arrivals(args, None),
        block_tokens=args.trace_block_tokens,
        max_input_tokens=args.max_input_tokens,
    )
    file = read_trace(Path(args.trace), args.trace_format)
    return Recipe(TRACE, options, file)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _defaults(name: str) -> str:
    """Which kinds take it, and what it is there."""
    values = {kind: one.defaults().get(name) for kind, one in KINDS.items()}
    known = {kind: value for kind, value in values.items() if value is not None}
    if len(set(known.values())) == 1 and len(known) > 3:
        return f"{next(iter(known.values()))}"
    return ", ".join(f"{kind} {value}" for kind, value in known.items()) or "multi-turn"
