"""`warmgate-load demo`: three policies over four embedded engines, in under three minutes.

The workload: agents with a long system prompt of their own, whose conversation grows for 24 turns
with short pauses. All of it fits into four engines' caches together, and not into each of them:
so a router that spreads turns blindly makes engines compute the same prompt again and again.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from loadgen import compare
from loadgen.comparison import Column, Comparison, print_comparison
from loadgen.comparison import compare as run_all
from loadgen.files import write_json
from loadgen.measure import Surroundings
from loadgen.report import ms, share

BASE: Final = "round-robin"
BEST: Final = "cache-aware"
MAX_BOUND_GAP: Final = 0.03
MIN_SPEED_UP: Final = 2.0

COMMAND: Final = (
    "compare --policy round-robin --policy session --policy cache-aware --replicas 4"
    " --profile 2xh100-32b-bf16 --num-blocks 2560 --workload multi-turn --num-requests 480"
    " --turns 24 --session-rate 4 --system-tokens 1200 --user-tokens 120 --output-tokens 24"
    " --think-s 0.8 --seed 7"
)
"""The same comparison by hand; `demo` adds the conclusions."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `demo`."""
    parser = commands.add_parser("demo", help="three policies over four embedded engines")
    parser.add_argument("--json", type=Path, default=Path("build/demo.json"), metavar="FILE")
    parser.add_argument("--log-dir", type=Path, default=Path("build/logs"))
    parser.set_defaults(run=run)


async def run(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """0 if no request failed, whatever the figures are; they are printed and stay in the file."""
    demo = demo_options(args.log_dir)
    contenders = compare.make_contenders(demo)
    console.print(f"warmgate-load {escape(COMMAND)}", highlight=False, soft_wrap=True)
    comparison, _ = await run_all(
        contenders, compare.make_plan(demo, [contender.name for contender in contenders]), around
    )
    print_comparison(comparison, console)
    write_json(args.json, comparison)
    for line in conclusions(comparison):
        console.print(escape(line), highlight=False, soft_wrap=True)
    return compare.exit_code(comparison)


def demo_options(log_dir: Path) -> argparse.Namespace:
    """`COMMAND` as `compare` would read it."""
    parser = argparse.ArgumentParser()
    compare.add_parser(parser.add_subparsers())
    return parser.parse_args([*shlex.split(COMMAND), "--log-dir", str(log_dir)])


def conclusions(comparison: Comparison) -> list[str]:
    """Latency, cache, and what to try next: three lines, from the figures alone."""
    runs = {run.policy: run for run in comparison.runs}
    if BASE not in runs or BEST not in runs:
        return ["stopped before there was something to compare"]
    return [_latency_line(runs), _cache_line(runs), _next_line(runs)]


def _latency_line(runs: Mapping[str, Column]) -> str:
    base, best = runs[BASE].ttft_ms["p95"], runs[BEST].ttft_ms["p95"]
    if not (isinstance(base, float) and isinstance(best, float) and best > 0):
        return "1. P95 TTFT cannot be compared: a run has no answers."
    ratio = base / best
    verdict = "" if ratio >= MIN_SPEED_UP else f" (less than the {MIN_SPEED_UP:.0f}x to expect)"
    return (
        f"1. P95 TTFT: {ms(best)} ms under {BEST}, {ms(base)} ms under {BASE}: "
        f"{ratio:.1f}x lower{verdict}."
    )


def _cache_line(runs: Mapping[str, Column]) -> str:
    best, base = runs[BEST], runs[BASE]
    if best.hit_rate is None or best.hit_rate_bound is None:
        return "2. Hit rate: the engines reported none, or the bound could not be computed."
    gap = best.hit_rate_bound - best.hit_rate
    verdict = (
        "" if gap <= MAX_BOUND_GAP else f" (more than the {100 * MAX_BOUND_GAP:.0f} to expect)"
    )
    computed = sum(one.uncached_tokens for one in best.summary.replicas)
    computed_blindly = sum(one.uncached_tokens for one in base.summary.replicas)
    return (
        f"2. Hit rate: {share(best.hit_rate)} under {BEST}, {100 * gap:.1f} points below the"
        f" bound of {share(best.hit_rate_bound)}{verdict}; {share(base.hit_rate)} under {BASE}, so"
        f" its engines computed {computed_blindly:,} prompt tokens instead of {computed:,}."
    )


def _next_line(runs: Mapping[str, Column]) -> str:
    if any(run.summary.client.is_bound for run in runs.values()):
        return (
            "3. Next: this machine was busy (client-bound above); close other programs, run again."
        )
    return (
        "3. Next: repeat the first line above with one thing changed: --num-blocks 16384 (each"
        " cache holds everything), --turns 4 (little to reuse), --shared-tokens 1500 (one start)."
    )
