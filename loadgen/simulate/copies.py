"""How many replicas hold a prefix whose traffic rises and falls, and what room that takes.

One prefix is asked for ever more often and then less again. Beside it goes traffic of more prefixes
than caches have room for, each asked for as often as any other: so a copy that is in use takes room
that they would have hits in, and one that is not is evicted soon, by the engines themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from rich.table import Table

from loadgen.quantiles import percentile
from loadgen.simulate.fleet import Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.outcome import Served
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.traffic import Ask, Dialogue, Ids, Segment, Stage, Traffic, tokens_of
from router.blocks import hash_blocks
from workers.engine.profile import load_profile

HOT, OTHERS = "hot", "others"
SAMPLED_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Tide:
    """`rates`: of the hot prefix per s, for `phase_s` each. Lengths in tokens."""

    rates: Sequence[float] = (4.0, 90.0, 4.0, 4.0)
    phase_s: float = 40.0
    hot_tokens: int = 6000
    others: int = 120
    other_tokens: int = 2000
    others_rate_per_s: float = 12.0
    question_tokens: int = 200
    output_tokens: int = 32
    replicas: int = 4
    kv_tokens: int = 40_000
    profile: str = "h100-8b-bf16"


@dataclass(frozen=True, slots=True)
class Level:
    """One phase, by its second half. `held`: replicas that hold the hot prefix, in the mean;
    `used`: those that were sent prompts which begin with it, likewise, over 5 s each."""

    rate_per_s: float
    held: float
    used: float
    hot_p95_ms: float
    others_p95_ms: float
    others_hit_rate: float


def traffic_of(tide: Tide, seed: int) -> tuple[Traffic, Segment]:
    """All requests, and the hot prefix."""
    rng, ids = Random(f"tide {seed}"), Ids()
    hot = (ids.new(), tide.hot_tokens)
    others = [(ids.new(), tide.other_tokens) for _ in range(tide.others)]
    dialogues = []

    def ask(at_s: float, prefix: Segment, tenant: str) -> None:
        question = (ids.new(), tide.question_tokens)
        asked = Ask((prefix, question), tide.output_tokens)
        dialogues.append(Dialogue(at_s, (asked,), tenant=tenant))

    for number, rate in enumerate(tide.rates):
        for at_s in _times(rng, rate, number * tide.phase_s, (number + 1) * tide.phase_s):
            ask(at_s, hot, HOT)
    for at_s in _times(rng, tide.others_rate_per_s, 0.0, len(tide.rates) * tide.phase_s):
        ask(at_s, rng.choice(others), OTHERS)
    dialogues.sort(key=lambda dialogue: dialogue.start_s)
    return Traffic([Stage("all", dialogues)], str(tide)), hot


def _times(rng: Random, rate: float, since_s: float, until_s: float) -> list[float]:
    times, at_s = [], since_s
    while (at_s := at_s + rng.expovariate(rate)) < until_s:
        times.append(at_s)
    return times


def levels(tide: Tide, policy: str, seed: int = 0) -> list[Level]:
    """One run, phase by phase."""
    traffic, hot = traffic_of(tide, seed)
    profile = load_profile(tide.profile)
    fleet = Fleet(profile=profile, replicas=tide.replicas, kv_tokens=tide.kv_tokens)
    simulation = Simulation(fleet, traffic, policy_maker(policy), seed)
    last = hash_blocks(tokens_of((hot,)), fleet.block_size)[-1]
    held: list[tuple[float, int]] = []
    timeline, engines = simulation.world.timeline, simulation.world.engines

    def look() -> None:
        held.append((timeline.now, sum(e.pool.holds(last) for e in engines.values())))

    ends_s = len(tide.rates) * tide.phase_s
    for number in range(int(ends_s / SAMPLED_EVERY_S)):
        timeline.at(number * SAMPLED_EVERY_S, look)
    served = simulation.run().served
    return [_level(tide, number, served, held) for number in range(len(tide.rates))]


def _level(
    tide: Tide, number: int, served: Sequence[Served], held: Sequence[tuple[float, int]]
) -> Level:
    since, until = (number + 0.5) * tide.phase_s, (number + 1) * tide.phase_s
    mine = [one for one in served if since <= one.asked < until]
    hot = [one for one in mine if one.tenant == HOT]
    others = [one for one in mine if one.tenant == OTHERS]
    copies = [count for at_s, count in held if since <= at_s < until]
    windows: dict[int, set[str]] = {}
    for one in hot:
        windows.setdefault(int(one.asked / 5.0), set()).add(one.replica)
    return Level(
        rate_per_s=tide.rates[number],
        held=sum(copies) / len(copies),
        used=sum(map(len, windows.values())) / max(len(windows), 1),
        hot_p95_ms=percentile(sorted(one.ttft_ms for one in hot), 0.95),
        others_p95_ms=percentile(sorted(one.ttft_ms for one in others), 0.95),
        others_hit_rate=sum(o.hit_tokens for o in others) / sum(o.prompt_tokens for o in others),
    )


def table_of(policy: str, found: Sequence[Level]) -> Table:
    """One row for each phase."""
    table = Table(title=f"{policy}: a prefix whose traffic rises and falls")
    columns = ("asked for per s", "replicas hold it", "in use", "P95 ms", "others: P95 ms", "hit %")
    for name in columns:
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            f"{one.rate_per_s:g}",
            f"{one.held:.1f}",
            f"{one.used:.1f}",
            f"{one.hot_p95_ms:.0f}",
            f"{one.others_p95_ms:.0f}",
            f"{100 * one.others_hit_rate:.1f}",
        )
    return table
