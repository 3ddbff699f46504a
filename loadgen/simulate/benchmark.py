"""Every policy over the suite, several seeds each, and what that says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Final

import msgspec

from loadgen.simulate.goals import Goal, of_rows, of_verdicts
from loadgen.simulate.outcome import Figures
from loadgen.simulate.suite import Case
from loadgen.simulate.trials import Here, Trial, Workers

T_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for a two-sided 95 % interval with 1, 2, … degrees of freedom."""

DEFAULT: Final = "cache-aware"
CONTROL: Final = "round-robin"


class Estimate(msgspec.Struct, frozen=True):
    """A mean over seeds; `half_width`: of its 95 % interval, None with one seed."""

    mean: float
    half_width: float | None = None


class Row(msgspec.Struct, frozen=True):
    """One policy on one workload; each seed's figures, and the main ones over all."""

    case: str
    policy: str
    ttft_p95_ms: Estimate
    ttft_p90_ms: Estimate
    ttft_mean_ms: Estimate
    tpot_mean_ms: Estimate
    hit_rate: Estimate
    pooled_bound: Estimate
    output_tokens_per_s: Estimate
    regret: Estimate
    seeds: Sequence[Figures]
    stages: Mapping[str, Sequence[Figures]]


class Verdict(msgspec.Struct, frozen=True):
    """How the default does on one workload, in P95 TTFT against the best policy and the control.

    `over_best`: 0.03 is 3 % above the best. `is_within_noise`, `is_control_within_noise`: the
    interval of the difference to the best, or the control, seed by seed, reaches down to zero.
    `of_bound`: hit rate as a share of one pooled cache's.
    """

    case: str
    best: str
    over_best: float
    is_within_noise: bool
    over_control: float
    is_control_within_noise: bool
    of_bound: float
    regret: float
    regret_later: float


class Benchmark(msgspec.Struct, frozen=True):
    """The whole of it."""

    rows: Sequence[Row]
    verdicts: Sequence[Verdict]
    goals: Sequence[Goal] = ()
    options: str = ""
    """What the rows were made with, beside cases and policies."""


def estimate(values: Sequence[float]) -> Estimate:
    """ValueError without values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean)
    t = T_95[min(len(values) - 2, len(T_95) - 1)]
    return Estimate(mean, t * statistics.stdev(values) / math.sqrt(len(values)))


def run_case(
    case: Case,
    policies: Sequence[str],
    seeds: Sequence[int],
    oracle_samples: int,
    progress: Callable[[str], None],
    workers: Workers | None = None,
) -> list[Row]:
    """The same seeds, so the same requests, for every policy."""
    return list(rows_of(case, policies, seeds, oracle_samples, progress, workers))


def rows_of(
    case: Case,
    policies: Sequence[str],
    seeds: Sequence[int],
    oracle_samples: int,
    progress: Callable[[str], None],
    workers: Workers | None = None,
) -> Iterator[Row]:
    """The same, each row as soon as it is whole."""
    trials = [
        Trial(case.name, policy, seed, oracle_samples if policy == DEFAULT else 0)
        for policy, seed in product(policies, seeds)
    ]
    measured = (workers or Here({case.name: case})).measure(trials)
    for policy in policies:
        progress(f"{case.name} {policy}")
        results = list(islice(measured, len(seeds)))
        stages = {label: [r.stages[label] for r in results] for label in results[0].stages}
        yield _row(case.name, policy, [result.total for result in results], stages)


def _row(
    case: str, policy: str, totals: Sequence[Figures], stages: Mapping[str, Sequence[Figures]]
) -> Row:
    def over_seeds(name: str) -> Estimate:
        return estimate([getattr(one, name) for one in totals])

    return Row(
        case=case,
        policy=policy,
        ttft_p95_ms=over_seeds("ttft_p95_ms"),
        ttft_p90_ms=over_seeds("ttft_p90_ms"),
        ttft_mean_ms=over_seeds("ttft_mean_ms"),
        tpot_mean_ms=over_seeds("tpot_mean_ms"),
        hit_rate=over_seeds("hit_rate"),
        pooled_bound=over_seeds("pooled_bound"),
        output_tokens_per_s=over_seeds("output_tokens_per_s"),
        regret=over_seeds("regret"),
        seeds=totals,
        stages=stages,
    )


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """One for each workload that the default and the control ran on."""
    found = []
    for case in dict.fromkeys(row.case for row in rows):
        by_policy = {row.policy: row for row in rows if row.case == case}
        if DEFAULT in by_policy and CONTROL in by_policy:
            found.append(_verdict(case, by_policy))
    return found


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Those of every workload that the default and the control ran on."""
    found = list(of_verdicts(verdicts(rows)))
    by_name = {(row.case, row.policy): row for row in rows}
    for case in dict.fromkeys(row.case for row in rows):
        ours, control = by_name.get((case, DEFAULT)), by_name.get((case, CONTROL))
        if ours is not None and control is not None:
            found += of_rows(ours, control)
    return found


def _verdict(case: str, by_policy: Mapping[str, Row]) -> Verdict:
    ours, control = by_policy[DEFAULT], by_policy[CONTROL]
    best = min(by_policy.values(), key=lambda row: row.ttft_p95_ms.mean)
    return Verdict(
        case=case,
        best=best.policy,
        over_best=ours.ttft_p95_ms.mean / best.ttft_p95_ms.mean - 1.0,
        is_within_noise=_is_noise(ours, best),
        over_control=ours.ttft_p95_ms.mean / control.ttft_p95_ms.mean - 1.0,
        is_control_within_noise=_is_noise(ours, control),
        of_bound=ours.hit_rate.mean / ours.pooled_bound.mean if ours.pooled_bound.mean else 1.0,
        regret=ours.regret.mean,
        regret_later=estimate([one.regret_later for one in ours.seeds]).mean,
    )


def _is_noise(ours: Row, other: Row) -> bool:
    pairs = zip(ours.seeds, other.seeds, strict=True)
    gap = estimate([one.ttft_p95_ms - its.ttft_p95_ms for one, its in pairs])
    return gap.half_width is not None and gap.mean <= gap.half_width
