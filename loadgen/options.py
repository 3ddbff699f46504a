"""The command line's options that several commands share, and what is made of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from loadgen.arrival import ARRIVALS
from loadgen.client import REPLICA_HEADER, Target
from loadgen.measure import MakeWorkload, Settings
from loadgen.text import Prose
from loadgen.workload.multi_turn import MultiTurn, MultiTurnOptions
from loadgen.workload.protocol import Workload
from loadgen.workload.shared_prefix import SharedPrefix, SharedPrefixOptions
from loadgen.workload.trace import Trace, TraceOptions, read_trace

WORKLOADS: Final = ("multi-turn", "shared-prefix", "trace")


class UsageError(Exception):
    """Options that cannot go together; the message says what to change."""


def positive(text: str) -> float:
    """A number above zero, `inf` included."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above zero")
    return value


def count(text: str) -> int:
    """A whole number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """`--workload`, and what each of them takes."""
    _add_common(parser)
    _add_conversations(parser)
    _add_trace(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("workload").add_argument
    add("--workload", choices=WORKLOADS, default="multi-turn")
    add("--num-requests", type=count, help="default: 200, or all rows of a trace")
    add("--seed", type=int, default=0, help="same seed, same requests")
    add(
        "--request-rate",
        type=positive,
        help="requests per second, default 4; for a trace: its own times",
    )
    add("--session-rate", type=positive, help="multi-turn: conversations started per second")
    add("--arrival", choices=ARRIVALS, default="poisson")
    add(
        "--burstiness",
        type=positive,
        default=1.0,
        help="gamma shape of the gaps; below 1 is burstier",
    )
    add("--output-tokens", type=count, default=64)


def _add_conversations(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("multi-turn").add_argument
    group("--turns", type=count, default=8)
    group("--shared-tokens", type=int, default=0, help="system prompt that all have in common")
    group("--system-tokens", type=count, default=1000, help="system prompt of each conversation")
    group("--user-tokens", type=count, default=100)
    group("--think-s", type=float, default=2.0, help="mean pause after an answer")
    group = parser.add_argument_group("shared-prefix").add_argument
    group("--groups", type=count, default=8)
    group("--prefix-tokens", type=count, default=1024)
    group("--question-tokens", type=count, default=128)
    group("--zipf", type=float, default=0.0, help="skew between groups; 0 is even")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trace").add_argument
    group("--trace", metavar="FILE", help="Mooncake format, one JSON object a line")
    group("--trace-scale", type=positive, default=1.0, help="0.1: all lengths a tenth")
    group("--trace-block-tokens", type=count, default=512, help="tokens that a hash id stands for")
    group("--speed-up", "--time-scale", type=positive, default=1.0, help="2: pauses half as long")
    group(
        "--max-input-tokens", type=count, help="leave out rows with longer prompts (after scaling)"
    )


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """How requests are sent and what the report needs."""
    add = parser.add_argument_group("requests").add_argument
    add("--endpoint", choices=("chat", "completions"), default="chat")
    add(
        "--max-concurrency",
        type=count,
        help="hold requests back at that many; both times are shown",
    )
    add(
        "--timeout-s", type=positive, default=600.0, help="for one request, from sending to its end"
    )
    add(
        "--extra-body", type=_json_object, default={}, metavar="JSON", help="added to every request"
    )
    add(
        "--usage-per-chunk",
        action="store_true",
        help="ask for vLLM's running token counts (exact ITL)",
    )
    add("--api-key-env", metavar="NAME", help="environment variable with the key")
    add("--replica-header", default=REPLICA_HEADER, help="answer's header that names the replica")
    add("--tokens-per-word", type=positive, help="default: measured with two small requests")
    add("--cache", choices=("cold", "as-is"), default="cold",
        help="cold: a text nobody sent before starts every prompt")  # fmt: skip
    add(
        "--block-size",
        type=count,
        default=16,
        help="tokens per cache block, for the hit-rate bound",
    )


def make_target(args: argparse.Namespace, url: str, model: str) -> Target:
    """UsageError when `--api-key-env` names a variable that is not set."""
    return Target(
        url=url,
        model=model,
        endpoint=args.endpoint,
        extra=args.extra_body,
        headers=_auth(args.api_key_env),
        usage_per_chunk=args.usage_per_chunk,
        replica_header=args.replica_header,
    )


def make_settings(args: argparse.Namespace) -> Settings:
    """What the options say; the caller adds what depends on the target."""
    return Settings(
        seed=args.seed,
        timeout_s=args.timeout_s,
        max_concurrency=args.max_concurrency,
        is_cold=args.cache == "cold",
        tokens_per_word=args.tokens_per_word,
        block_size=args.block_size,
    )


def workload_maker(args: argparse.Namespace) -> MakeWorkload:
    """Reads the trace now, so that a bad file is known before anything starts."""
    if args.workload == "trace":
        return _trace_maker(args)
    if args.trace:
        raise UsageError("--trace needs --workload trace")
    if args.workload == "shared-prefix":
        return _shared_prefix_maker(args)
    return _multi_turn_maker(args)


def _multi_turn_maker(args: argparse.Namespace) -> MakeWorkload:
    if args.session_rate and args.request_rate:
        raise UsageError("--session-rate and --request-rate exclude each other")
    options = MultiTurnOptions(
        requests=args.num_requests or 200,
        # In a steady state, as many conversations start as end.
        session_rate_per_s=args.session_rate or (args.request_rate or 4.0) / args.turns,
        arrival=args.arrival,
        burstiness=args.burstiness,
        turns=args.turns,
        shared_tokens=args.shared_tokens,
        system_tokens=args.system_tokens,
        user_tokens=args.user_tokens,
        output_tokens=args.output_tokens,
        think_s=args.think_s,
    )

    def make(prose: Prose, salt: str) -> Workload:
        return MultiTurn(options, prose, salt)

    return make


def _shared_prefix_maker(args: argparse.Namespace) -> MakeWorkload:
    options = SharedPrefixOptions(
        requests=args.num_requests or 200,
        rate_per_s=args.request_rate or 4.0,
        arrival=args.arrival,
        burstiness=args.burstiness,
        groups=args.groups,
        prefix_tokens=args.prefix_tokens,
        question_tokens=args.question_tokens,
        output_tokens=args.output_tokens,
        zipf=args.zipf,
    )

    def make(prose: Prose, salt: str) -> Workload:
        return SharedPrefix(options, prose, salt)

    return make


def _trace_maker(args: argparse.Namespace) -> MakeWorkload:
    if not args.trace:
        raise UsageError("--workload trace needs --trace FILE")
    options = TraceOptions(
        path=args.trace,
        requests=args.num_requests,
        scale=args.trace_scale,
        speed_up=args.speed_up,
        rate_per_s=args.request_rate,
        arrival=args.arrival,
        burstiness=args.burstiness,
        block_tokens=args.trace_block_tokens,
        max_input_tokens=args.max_input_tokens,
    )
    rows = read_trace(Path(args.trace))

    def make(prose: Prose, salt: str) -> Workload:
        return Trace(rows, options, prose, salt)

    return make


def _auth(variable: str | None) -> Mapping[str, str]:
    if variable is None:
        return {}
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"--api-key-env: {variable} is not set")
    return {"Authorization": f"Bearer {key}"}


def _json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise argparse.ArgumentTypeError(f"not a JSON object: {exc}") from exc
