"""My traffic, my replicas: which policy, and how many of them, keep P95 TTFT below a limit?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.table import Table

from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.suite import Case

MOST_REPLICAS: Final = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """The fewest replicas that keep the limit, or None if `MOST_REPLICAS` don't."""

    policy: str
    replicas: int | None
    ttft_p95_ms: float
    hit_rate: float


def smallest_fleets(case: Case, policies: Sequence[str], ttft_p95_ms: float) -> list[Answer]:
    """By doubling, then bisection: as if more replicas never were worse."""
    return [_smallest_fleet(case, policy, ttft_p95_ms) for policy in policies]


def _smallest_fleet(case: Case, policy: str, limit_ms: float) -> Answer:
    tried: dict[int, Answer] = {}

    def keeps(replicas: int) -> bool:
        fleet = replace(case.fleet, replicas=replicas)
        total = Simulation(fleet, case.make(0), policy_maker(policy)).run().total
        tried[replicas] = Answer(policy, replicas, total.ttft_p95_ms, total.hit_rate)
        return total.ttft_p95_ms <= limit_ms

    high = 1
    while not keeps(high):
        if high >= MOST_REPLICAS:
            return replace(tried[high], replicas=None)
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return tried[high]


def table_of(case: Case, answers: Sequence[Answer], limit_ms: float) -> Table:
    """One row for each policy."""
    table = Table(title=f"{case.name}: fewest replicas with P95 TTFT ≤ {limit_ms:g} ms")
    for name in ("policy", "replicas", "P95 TTFT ms", "hit %"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for one in answers:
        table.add_row(
            one.policy,
            str(one.replicas) if one.replicas else f"more than {MOST_REPLICAS}",
            f"{one.ttft_p95_ms:,.0f}",
            f"{100 * one.hit_rate:.1f}",
        )
    return table
