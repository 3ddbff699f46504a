"""What a hit rate costs: each beginning of prompts at so many homes and nowhere else.

    python -m tests.bench.homes [--case sibling-burst] [--seed 0]

Whoever computes a beginning at fewer replicas has more hits, and longer queues there. Homes are
given out so that all have equally many prompts, which a router that does not know the future
cannot; a prompt goes to the one of its beginning's homes that has the fewest requests. Beside them
stands the default policy.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from rich.console import Console
from rich.table import Table

from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.outcome import Figures
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.suite import Case, cases
from router.routing import Candidate, Decision, Policy, Reason, RouteQuery


@dataclass(slots=True)
class Homes:
    """A policy. `beginnings`: of the prompts, in the order in which they will be asked."""

    copies: int
    beginnings: list[int]
    needs_prefix: bool = True
    uses_history: bool = False
    _homes: dict[int, Sequence[str]] = field(default_factory=dict)
    _sent: Counter[str] = field(default_factory=Counter)
    _turn: int = 0

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        beginning = self.beginnings[self._turn]
        self._turn += 1
        order = sorted((c.replica_id for c in candidates), key=lambda i: (self._sent[i], i))
        homes = self._homes.setdefault(beginning, order[: self.copies])
        in_flight = {c.replica_id: c.in_flight for c in candidates}
        home = min(homes, key=lambda i: (in_flight[i], i))
        self._sent[home] += 1
        return Decision((home, *(i for i in order if i != home)), Reason.MATCH)


def simulated(case: Case, copies: int, seed: int) -> Figures:
    """ValueError for a workload whose prompts follow each other: their order isn't known before."""
    traffic = case.make(seed)
    dialogues = [each for stage in traffic.stages for each in stage.dialogues]
    if len(traffic.stages) > 1 or any(len(d.turns) > 1 or d.after is not None for d in dialogues):
        raise ValueError(f"{case.name}: prompts follow each other")
    ordered = sorted(dialogues, key=lambda dialogue: dialogue.start_s)
    beginnings = [dialogue.turns[0].segments[0][0] for dialogue in ordered]

    def make(rng: Random) -> Policy:
        return Homes(copies, beginnings)

    return Simulation(case.fleet, traffic, make, seed).run().total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = cases()
    parser.add_argument("--case", choices=sorted(known), default="sibling-burst")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    case = known[args.case]
    table = Table(title=f"{case.name}, seed {args.seed}: {case.about}")
    for name in ("homes", "hit %", "of the bound %", "P95 TTFT ms", "mean ms"):
        table.add_column(name, justify="right")
    found = {str(k): simulated(case, k, args.seed) for k in range(1, case.fleet.replicas + 1)}
    own = Simulation(case.fleet, case.make(args.seed), policy_maker("cache-aware"), args.seed)
    found["cache-aware"] = own.run().total
    for name, one in found.items():
        table.add_row(
            name,
            f"{100 * one.hit_rate:.1f}",
            f"{100 * one.hit_rate / max(one.pooled_bound, 1e-9):.1f}",
            f"{one.ttft_p95_ms:.1f}",
            f"{one.ttft_mean_ms:.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
