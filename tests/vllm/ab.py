"""The same conversations under three policies, taking turns: hit rate and TTFT over real vLLM.

usage: python -m tests.vllm.ab [--seeds N] [--json FILE]

`make bench-vllm` sets it up and runs it; WARMGATE_VLLM and WARMGATE_VLLM_MODEL name what it needs.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.vllm import stack
from tests.vllm.conversations import Outcome, Workload, converse, percentile
from tests.vllm.stack import MODEL_NAME, Installed, Replica

ALONE: Final = "one replica alone"
POLICIES: Final = ("cache-aware", "round-robin", "session")
NAMES_SESSIONS: Final = "session"
"""The one policy whose clients send a header; it shows what stickiness can reach."""

SEEDS_A_ROUND: Final = 2

NO_PEERS: Final[Mapping[str, Path]] = {}

Runs = Mapping[str, Sequence[Outcome]]
"""Policy → one outcome per seed, in the order of the seeds."""


def interleave(
    at: Installed,
    pair: Sequence[Replica],
    seeds: Sequence[int],
    tell: Callable[[str], None],
    peers: Mapping[str, Path] = NO_PEERS,
) -> dict[str, list[Outcome]]:
    """Every policy once per seed, each time from empty caches, beginning with another policy.

    So a slow minute of the machine hits all alike. The routers live through all seeds, as routers
    do. `ALONE` is the same conversations on the first replica without a router: with nothing
    evicted, no routing can reach a higher hit rate. `peers`: other projects' routers, and the
    Python that each is installed for.
    """
    with ExitStack() as exits:
        urls = {name: exits.enter_context(stack.router(at, pair, name)) for name in POLICIES}
        for name, python in peers.items():
            urls[name] = exits.enter_context(stack.peer(at, pair, python, name))
        urls[ALONE] = pair[0].url
        runs: dict[str, list[Outcome]] = {name: [] for name in urls}
        order = list(urls)
        for name in order:
            # An engine's first steps are slow ones.
            asyncio.run(converse(urls[name], Workload(MODEL_NAME, 0, conversations=4, turns=2)))
        for seed in seeds:
            for name in order:
                for replica in pair:
                    replica.forget()
                workload = Workload(MODEL_NAME, seed)
                talking = converse(urls[name], workload, name_sessions=name == NAMES_SESSIONS)
                runs[name].append(asyncio.run(talking))
                tell(f"seed {seed}, {name}: {runs[name][-1].figures()}")
            order = [*order[1:], order[0]]
    return runs


def summary(runs: Runs) -> dict[str, Any]:
    """The report: means over the seeds, each seed's figures, and P95 TTFT by round."""
    ours, blind, sticky = (p95_by_round(runs[name]) for name in POLICIES)
    return {
        "mean": {name: _mean(outcomes) for name, outcomes in runs.items()},
        "runs": {name: [one.figures() for one in outcomes] for name, outcomes in runs.items()},
        "p95_ttft_ms_by_round": {
            name: [round(1000 * value) for value in values]
            for name, values in zip(POLICIES, (ours, blind, sticky), strict=True)
        },
        "p95_ttft_against_round_robin": [round(a / b, 3) for a, b in zip(ours, blind, strict=True)],
        "p95_ttft_against_session": round(fmean(ours) / fmean(sticky), 3),
        "hit_rate_below_alone": round(_hit_rate(runs[ALONE]) - _hit_rate(runs[POLICIES[0]]), 4),
    }


def p95_by_round(outcomes: Sequence[Outcome]) -> list[float]:
    """P95 TTFT in seconds, of two seeds at a time: of 40 requests alone, it would be the third."""
    rounds = [outcomes[at : at + SEEDS_A_ROUND] for at in range(0, len(outcomes), SEEDS_A_ROUND)]
    return [p95([a.ttft_s for one in each for a in one.answers]) for each in rounds]


def p95(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.95)


def _hit_rate(outcomes: Sequence[Outcome]) -> float:
    return fmean(outcome.hit_rate for outcome in outcomes)


def _mean(outcomes: Sequence[Outcome]) -> dict[str, float]:
    rows = [outcome.figures() for outcome in outcomes]
    return {key: round(fmean(row[key] for row in rows), 4) for key in rows[0]}


def table(report: Mapping[str, Any]) -> Table:
    """The means, one row per policy."""
    shown = Table("", "hit rate", "TTFT P50", "P95", "mean, ms", "run, s")
    for name, mean in report["mean"].items():
        ttfts = [f"{mean[f'{rank}_ttft_ms']:,.0f}" for rank in ("p50", "p95", "mean")]
        shown.add_row(name, f"{mean['hit_rate']:.3f}", *ttfts, f"{mean['wall_s']:.1f}")
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description="three policies over two real vLLM replicas")
    parser.add_argument("--seeds", type=int, default=6, metavar="N", help="default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME", help="vllm-router…")
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"))
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    peers = dict.fromkeys(args.peer, args.peers_python)
    at = stack.installed()
    if at is None:
        sys.stderr.write("no real vLLM here: `make bench-vllm` sets it up\n")
        return 2
    progress = Console(stderr=True)
    with stack.replicas(at) as pair:
        runs = interleave(at, pair, seeds, lambda line: progress.print(line, soft_wrap=True), peers)
    report = summary(runs)
    Console().print(table(report))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
