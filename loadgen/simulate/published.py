"""llm-d's published ladder, and how far the simulator is from each of its points.

Source: llm-d-kv-cache, `benchmarking/73-capacity` (8 × 2 H100, Qwen3-32B, vLLM). Its schedulers are
not ours: `random` is the same; `load` ranks by scraped queue and cache use, here `least-loaded`;
`precise` weighs prefix, cache and queue 3:2:2, here `cache-aware`. So the last two tell of the
policies as much as of the simulator.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rich.table import Table

from loadgen.simulate.fleet import Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.ladder import LADDER_73, RATES
from loadgen.simulate.outcome import Figures
from loadgen.simulate.simulation import Simulation
from workers.engine.profile import load_profile


class Point(NamedTuple):
    """At one rate. Times in seconds."""

    rate: int
    output_tokens_per_s: float
    ttft_p90_s: float
    ttft_mean_s: float


PROFILE: Final = "2xh100-32b-llmd"
RANDOM: Final = (
    Point(3, 1314.0, 0.820, 0.622),
    Point(10, 3568.5, 1.398, 0.826),
    Point(15, 3791.1, 2.299, 1.278),
    Point(20, 4933.1, 70.273, 25.073),
    Point(22, 4765.4, 78.420, 28.185),
    Point(25, 4781.3, 82.943, 30.689),
    Point(30, 4636.3, 86.182, 32.212),
    Point(35, 4332.6, 91.519, 34.043),
    Point(40, 4773.8, 101.272, 54.196),
    Point(43, 4844.6, 101.142, 53.247),
    Point(46, 4969.5, 101.265, 53.572),
    Point(49, 4783.2, 103.514, 56.130),
    Point(52, 4845.1, 105.004, 56.035),
    Point(55, 4921.7, 104.321, 54.844),
    Point(57, 4764.2, 106.816, 56.803),
    Point(60, 4835.2, 105.988, 57.426),
)
LOAD: Final = (
    Point(3, 1274.8, 1.609, 0.944),
    Point(10, 3607.0, 4.124, 2.241),
    Point(15, 3348.4, 7.002, 4.013),
    Point(20, 4902.5, 77.707, 29.229),
    Point(22, 4785.5, 72.972, 28.710),
    Point(25, 4872.8, 85.979, 32.534),
    Point(30, 4888.7, 83.806, 32.831),
    Point(35, 4660.7, 88.086, 33.874),
    Point(40, 4946.4, 100.911, 53.545),
    Point(43, 4973.3, 101.524, 53.802),
    Point(46, 4723.6, 105.884, 56.746),
    Point(49, 4004.8, 105.015, 55.208),
    Point(52, 3991.0, 108.572, 58.807),
    Point(55, 4671.9, 110.681, 58.467),
    Point(57, 3866.5, 113.278, 61.750),
    Point(60, 4745.1, 110.184, 58.497),
)
PRECISE: Final = (
    Point(3, 1219.1, 0.498, 0.291),
    Point(10, 3902.1, 0.600, 0.335),
    Point(15, 5761.1, 0.400, 0.249),
    Point(20, 9184.5, 0.600, 0.363),
    Point(22, 9382.0, 0.500, 0.300),
    Point(25, 9242.2, 0.583, 0.303),
    Point(30, 9221.8, 0.509, 0.296),
    Point(35, 9780.6, 0.500, 0.275),
    Point(40, 10270.8, 0.488, 0.269),
    Point(43, 10054.8, 0.500, 0.281),
    Point(46, 10128.7, 0.589, 0.293),
    Point(49, 10296.5, 0.600, 0.311),
    Point(52, 10284.6, 0.507, 0.288),
    Point(55, 10140.9, 0.600, 0.308),
    Point(57, 10313.9, 0.600, 0.319),
    Point(60, 10496.9, 0.500, 0.283),
)
LADDERS: Final[Mapping[str, tuple[str, tuple[Point, ...]]]] = {
    "random": ("random", RANDOM),
    "load": ("least-loaded", LOAD),
    "precise": ("cache-aware", PRECISE),
}


class Deviation(NamedTuple):
    """A published point, and what each seed gave at its rate."""

    point: Point
    simulated: Sequence[Figures]

    @property
    def output_tokens_per_s(self) -> float:
        return statistics.fmean(one.output_tokens_per_s for one in self.simulated)

    @property
    def off(self) -> float:
        """Of the output: 0.1 is 10 % more than was published."""
        return self.output_tokens_per_s / self.point.output_tokens_per_s - 1


class LadderSeen(NamedTuple):
    """One scheduler's points."""

    name: str
    policy: str
    deviations: Sequence[Deviation]


def ladders(
    seeds: Sequence[int], policies: Container[str], progress: Callable[[str], None]
) -> Iterator[LadderSeen]:
    """Each published scheduler whose policy is one of these, as soon as it is through."""
    fleet = Fleet(profile=load_profile(PROFILE), replicas=8)
    for name, (policy, points) in LADDERS.items():
        if policy not in policies:
            continue
        stages = []
        for seed in seeds:
            progress(f"{name}, seed {seed}")
            traffic = replace(LADDER_73, stages=RATES).traffic(seed)
            stages.append(Simulation(fleet, traffic, policy_maker(policy), seed).run().stages)
        yield LadderSeen(
            name,
            policy,
            [Deviation(point, [one[f"{point.rate}/s"] for one in stages]) for point in points],
        )


def table_of(ladder: LadderSeen) -> Table:
    """Each published point beside the simulated ones: means over seeds, and their range."""
    seeds = len(ladder.deviations[0].simulated)
    title = f"llm-d 73 % capacity, {ladder.name}: published against simulated, {seeds} seeds"
    table = Table(title=f"{title} ({PROFILE}, {ladder.policy})")
    for name in ("rate/s", "out tok/s", "simulated", "off %", "of seeds %"):
        table.add_column(name, justify="right")
    for name in ("TTFT p90 s", "simulated", "TTFT mean s", "simulated"):
        table.add_column(name, justify="right")
    for one in ladder.deviations:
        table.add_row(*_row(one))
    return table


def summary_of(ladders: Sequence[LadderSeen]) -> Table:
    """By scheduler: how far the output is off, and where it bends."""
    table = Table(title="Output against the published one, over rates")
    for name in ("scheduler", "median |off| %", "within 10 %", "worst %", "at rate/s"):
        table.add_column(name, justify="right")
    for ladder in ladders:
        found = ladder.deviations
        worst = max(found, key=lambda one: abs(one.off))
        table.add_row(
            ladder.name,
            f"{100 * statistics.median(abs(one.off) for one in found):.1f}",
            f"{sum(abs(one.off) <= 0.1 for one in found)} of {len(found)}",
            f"{100 * worst.off:+.0f}",
            str(worst.point.rate),
        )
    return table


def _row(one: Deviation) -> list[str]:
    point, simulated = one.point, one.simulated
    offs = [seed.output_tokens_per_s / point.output_tokens_per_s - 1 for seed in simulated]
    return [
        str(point.rate),
        f"{point.output_tokens_per_s:,.0f}",
        f"{one.output_tokens_per_s:,.0f}",
        f"{100 * one.off:+.0f}",
        f"{100 * min(offs):+.0f} to {100 * max(offs):+.0f}",
        f"{point.ttft_p90_s:.2f}",
        f"{statistics.fmean(seed.ttft_p90_ms for seed in simulated) / 1e3:.2f}",
        f"{point.ttft_mean_s:.2f}",
        f"{statistics.fmean(seed.ttft_mean_ms for seed in simulated) / 1e3:.2f}",
    ]
