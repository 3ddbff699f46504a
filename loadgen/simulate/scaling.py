"""What conversations notice when replicas join, leave and die under them.

Chats go on for as long as the run lasts. The fleet grows by two, shrinks by two, and loses one that
dies. Goals, at each change: of n replicas
k changed, so no more than k / n of the sessions and a twentieth have another replica at their next
turn; and P95 of TTFT, over 5 s, is at no time above twice what it was before for more than 10 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from rich.table import Table

from loadgen.quantiles import percentile
from loadgen.simulate.fleet import Change, Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.outcome import Served
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.traffic import Ask, Dialogue, Ids, Segment, Stage, Traffic
from workers.engine.profile import load_profile

REPLICAS: Final = 8
GROWS_AT_S, SHRINKS_AT_S, DIES_AT_S, ENDS_AT_S = 50.0, 90.0, 130.0, 170.0
MOST_MOVED_BEYOND: Final = 0.05
MOST_SPIKE: Final = 2.0
MOST_SPIKE_S: Final = 10.0
WINDOW_S: Final = 5.0
BASE_S: Final = 20.0
"""P95 before a change is of so long."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A change of the fleet: `changed` of `replicas` (those before and the new ones)."""

    name: str
    at_s: float
    until_s: float
    changed: int
    replicas: int


PHASES: Final = (
    Phase("8 to 10", GROWS_AT_S, SHRINKS_AT_S, 2, 10),
    Phase("10 to 8", SHRINKS_AT_S, DIES_AT_S, 2, 10),
    Phase("one of 8 dies", DIES_AT_S, ENDS_AT_S, 1, 8),
)
CHANGES: Final = (
    Change(GROWS_AT_S, add=2),
    Change(SHRINKS_AT_S, drain=2),
    Change(DIES_AT_S, kill=1),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`moved`: share of sessions whose turns before and after went to different replicas;
    `moved_anyway`: the same where nothing changed, half a phase before. `spike_s`: the longest
    time that P95 of TTFT was above twice `p95_ms`, that of before.
    """

    phase: Phase
    sessions: int
    moved: float
    moved_anyway: float
    p95_ms: float
    worst_ms: float
    spike_s: float

    @property
    def most_moved(self) -> float:
        return self.phase.changed / self.phase.replicas + MOST_MOVED_BEYOND

    @property
    def is_met(self) -> bool:
        return self.moved <= self.most_moved and self.spike_s <= MOST_SPIKE_S


def chats(seed: int, sessions: int = 160) -> Traffic:
    """All with one system prompt and a history each; a turn follows an answer after some 6 s."""
    rng, ids = Random(f"scaling {seed}"), Ids()
    system = (ids.new(), 500)
    dialogues = []
    for number in range(sessions):
        segments: list[Segment] = [system, (ids.new(), rng.randint(1500, 4500))]
        start_s, turns, spent_s = rng.uniform(0.0, 20.0), [], 0.0
        while start_s + spent_s < ENDS_AT_S:
            think_s = rng.expovariate(1 / 6.0)
            segments.append((ids.new(), rng.randint(50, 250)))
            answer = (ids.new(), rng.randint(50, 250))
            turns.append(Ask(tuple(segments), answer[1], answer[0], think_s))
            segments.append(answer)
            spent_s += think_s + 1.0  # an answer takes about so long
        dialogues.append(Dialogue(start_s, tuple(turns), f"s{number}"))
    return Traffic([Stage("all", dialogues)])


def scaled(policy: str, seed: int = 0) -> list[Verdict]:
    """One run, one verdict for each change."""
    fleet = Fleet(profile=load_profile("h100-8b-bf16"), replicas=REPLICAS, changes=CHANGES)
    result = Simulation(fleet, chats(seed), policy_maker(policy), seed).run()
    steady = replace(fleet, changes=())
    calm = Simulation(steady, chats(seed), policy_maker(policy), seed).run()
    return [_verdict(phase, result.served, calm.served) for phase in PHASES]


def _verdict(phase: Phase, served: Sequence[Served], calm: Sequence[Served]) -> Verdict:
    moved, sessions = _moved(served, phase.at_s)
    before = sorted(one.ttft_ms for one in served if phase.at_s - BASE_S <= one.asked < phase.at_s)
    base_ms = percentile(before, 0.95)
    worst_ms, spike_s = 0.0, 0.0
    since: float | None = None
    at = phase.at_s
    while at + WINDOW_S <= phase.until_s:
        window = sorted(one.ttft_ms for one in served if at <= one.asked < at + WINDOW_S)
        p95_ms = percentile(window, 0.95) if window else 0.0
        worst_ms = max(worst_ms, p95_ms)
        if p95_ms > MOST_SPIKE * base_ms:
            since = at if since is None else since
            spike_s = max(spike_s, at - since + 1.0)
        else:
            since = None
        at += 1.0
    return Verdict(phase, sessions, moved, _moved(calm, phase.at_s)[0], base_ms, worst_ms, spike_s)


def _moved(served: Sequence[Served], at_s: float) -> tuple[float, int]:
    """Share of sessions that changed replicas there, and how many had turns on both sides."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for one in sorted(served, key=lambda one: one.asked):
        if one.session is not None:
            if one.asked < at_s:
                before[one.session] = one.replica
            else:
                after.setdefault(one.session, one.replica)
    both = before.keys() & after.keys()
    moved = sum(before[session] != after[session] for session in both)
    return moved / max(len(both), 1), len(both)


def table_of(policy: str, verdicts: Sequence[Verdict]) -> Table:
    """One row for each change."""
    met = sum(one.is_met for one in verdicts)
    table = Table(title=f"{policy}: {met} of {len(verdicts)} changes of the fleet kept the goals")
    columns = ("change", "sessions", "moved %", "at most %", "unchanged: moved %")
    for name in (*columns, "P95 before ms", "worst 5 s ms", "above twice for s", ""):
        table.add_column(name, justify="left" if name in ("change", "") else "right")
    for one in verdicts:
        table.add_row(
            one.phase.name,
            str(one.sessions),
            f"{100 * one.moved:.1f}",
            f"{100 * one.most_moved:.1f}",
            f"{100 * one.moved_anyway:.1f}",
            f"{one.p95_ms:.0f}",
            f"{one.worst_ms:.0f}",
            f"{one.spike_s:.0f}",
            "met" if one.is_met else "MISSED",
        )
    return table
