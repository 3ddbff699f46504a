"""What stands between the default policy and a lower TTFT on llm-d's workload, by taking it away.

    python -m tests.bench.floors [--case A] [--stage 40/s] [--seeds 1]

Rows: the policy as it is; with caches from which nothing is ever evicted; and with those and
prompts that take no time to compute. No policy can do either: what is left is the host's work, the
rest of the step that runs, and a step beside all that decode.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from loadgen.simulate.fleet import Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.outcome import Figures
from loadgen.simulate.simulation import Result, Simulation
from loadgen.simulate.suite import cases

ENDLESS: Final = 10
"""So many times the cache: more than the whole run asks for."""


def endless(fleet: Fleet) -> Fleet:
    return replace(fleet, kv_tokens=ENDLESS * (fleet.kv_tokens or fleet.profile.kv_tokens))


def effortless(fleet: Fleet) -> Fleet:
    profile = msgspec.structs.replace(
        fleet.profile, prefill_ms_per_token=0.0, prefill_ms_per_token_squared=0.0
    )
    return replace(endless(fleet), profile=profile)


ROWS: Final[dict[str, Callable[[Fleet], Fleet]]] = {
    "as it is": lambda fleet: fleet,
    "caches without end": endless,
    "and computing takes no time": effortless,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = cases()
    parser.add_argument("--case", choices=sorted(known), default="A")
    parser.add_argument("--stage", default="40/s", help="whose TTFT is shown beside all")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    case = known[args.case]
    table = Table(title=f"{case.name}, {args.seeds} seeds: {case.about}")
    table.add_column("")
    for name in (f"p90 ms at {args.stage}", "P95 ms of all", "hit %", "peak out tok/s"):
        table.add_column(name, justify="right")
    for name, change in ROWS.items():
        fleet, maker = change(case.fleet), policy_maker("cache-aware")
        runs = [Simulation(fleet, case.make(seed), maker, seed).run() for seed in range(args.seeds)]
        table.add_row(name, *_row(runs, args.stage))
    Console(width=120).print(table)


def _row(runs: Sequence[Result], stage: str) -> list[str]:
    stages = [run.stages.get(stage, run.total) for run in runs]
    peaks = [max(map(_output, run.stages.values())) for run in runs]
    return [
        ", ".join(f"{one.ttft_p90_ms:.0f}" for one in stages),
        f"{statistics.fmean(run.total.ttft_p95_ms for run in runs):.0f}",
        f"{100 * statistics.fmean(run.total.hit_rate for run in runs):.1f}",
        f"{statistics.fmean(peaks):,.0f}",
    ]


def _output(figures: Figures) -> float:
    return figures.output_tokens_per_s


if __name__ == "__main__":
    main()
