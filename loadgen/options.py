"""Options that several commands share, and what is made of them. Workloads' own: `recipes`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from loadgen.client import REPLICA_HEADER, Target
from loadgen.measure import CACHES, COLD, Settings
from loadgen.slo import parse_goodput, parse_slo
from loadgen.window import Window

T = TypeVar("T")


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


def natural(text: str) -> int:
    """A whole number, zero included."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def said(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser whose ValueError is shown as it is."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return convert


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """How requests are sent, and which of them count."""
    add = parser.add_argument_group("requests").add_argument
    add("--endpoint", choices=("chat", "completions"), default="chat")
    add("--max-concurrency", type=count,
        help="hold requests back at that many; both times are shown")  # fmt: skip
    add("--processes", type=count, default=1,
        help="that share the load; one reads about 50,000 events/s on a free core")  # fmt: skip
    add("--timeout-s", type=positive, default=600.0,
        help="for one request, from sending to its end")  # fmt: skip
    add("--extra-body", type=_json_object, default={}, metavar="JSON",
        help="added to every request")  # fmt: skip
    add("--usage-per-chunk", action="store_true",
        help="ask for vLLM's running token counts (exact ITL)")  # fmt: skip
    add("--api-key-env", metavar="NAME", help="environment variable with the key")
    add("--replica-header", default=REPLICA_HEADER, help="answers' header with its name")
    add("--tokens-per-word", type=positive, help="default: measured with two small requests")
    add("--tokenizer", type=Path, metavar="PATH",
        help="the target's tokenizer.json: prompts of exactly the wanted length")  # fmt: skip
    add("--block-size", type=count, default=16,
        help="tokens per cache block, for the hit-rate bound")  # fmt: skip
    _add_counted(parser)


def _add_counted(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what counts").add_argument
    add("--cache", choices=CACHES, default=COLD,
        help="cold: a text nobody sent before starts every prompt; warm: so it does, and first"
        " prompts are sent once before the run; as-is: neither")  # fmt: skip
    add("--prime-concurrency", type=count, default=4, help="requests at once while it warms up")
    add("--warmup-s", type=float, default=0.0, help="leave out requests due in the first seconds")
    add("--warmup-requests", "--num-warmups", type=natural, default=0,
        help="leave out the first requests")  # fmt: skip
    add("--cooldown-s", type=float, default=0.0, help="leave out requests due in the last seconds")
    add("--goodput", type=said(parse_goodput), action="append", default=[], metavar="METRIC:MS",
        help="what a good request is: ttft:200, tpot:50, e2el:2000; repeatable")  # fmt: skip
    add("--slo", type=said(parse_slo), action="append", default=[], metavar="NAME=N",
        help="p95_ttft_ms=250, error_share=0.01, hit_rate=0.8: exit code 3 if missed")  # fmt: skip


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
    """What the options say; the caller adds what depends on the target. UsageError."""
    for cap in (args.max_concurrency, args.concurrency):
        if cap is not None and cap < args.processes:
            raise UsageError(f"--processes {args.processes}: more than requests at once ({cap})")
    return Settings(
        seed=args.seed,
        timeout_s=args.timeout_s,
        max_concurrency=args.max_concurrency,
        concurrency=args.concurrency,
        processes=args.processes,
        cache=args.cache,
        prime_concurrency=args.prime_concurrency,
        window=Window(args.warmup_s, args.warmup_requests, args.cooldown_s),
        goodput_ms=dict(args.goodput),
        tokens_per_word=args.tokens_per_word,
        tokenizer=args.tokenizer,
        block_size=args.block_size,
    )


def session_header(text: str) -> str | None:
    """`none` is no header."""
    return None if text == "none" else text


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
