"""Regression anchors: hit rates that toy policies have on public traces, computed by other code.

There a replica is an LRU list of blocks that prompts enter as they arrive, and computes 15,000
tokens a second, one prompt after the other; nothing is decoded. Here the same rows go through the
router's chooser and index and through the engine's scheduler and pool, set up to be as simple: one
sequence at a time, whole in one step, one token of answer. Twice: with prompts that are held as
they arrive, which is what the hit rates are compared of, and with prompts that are held when they
are computed, at that speed. Where queues are long both differ, for a router that sees what is held
does not see what those that wait will evict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.table import Table

from loadgen.simulate.fleet import Fleet
from loadgen.simulate.outcome import Figures
from loadgen.simulate.patterns import dialogues_of
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.toys import TOKENS_PER_S, TOYS
from loadgen.simulate.traffic import Dialogue, Stage, Traffic
from loadgen.workload.formats import TraceFile, read_trace
from workers.engine.profile import Profile

REPLICAS: Final = 8
MOST_OFF: Final = 0.01
BLOCK_TOKENS: Final = 512

COMPUTED: Final = Profile(
    name="prefill-only",
    basis="15,000 prompt tokens a second and nothing else",
    step_ms=0.0,
    decode_ms_per_sequence=0.0,
    decode_ms_per_kv_token=0.0,
    prefill_ms_per_token=1e3 / TOKENS_PER_S,
    prefill_ms_per_token_squared=0.0,
    kv_tokens=307_328,
    max_model_len=307_328,
    max_num_batched_tokens=307_328,
    max_num_seqs=1,
)
AT_ONCE: Final = msgspec.structs.replace(COMPUTED, name="at once", prefill_ms_per_token=0.0)


class Anchor(NamedTuple):
    """Share of prompt tokens that hit; queue and prefill in seconds."""

    hit_rate: float
    mean_s: float
    p95_s: float


class Point(NamedTuple):
    """An anchor beside what the simulator says of prompts that are held `at_once`, or when they
    are `computed`."""

    trace: str
    policy: str
    anchor: Anchor
    at_once: Figures
    computed: Figures

    @property
    def off(self) -> float:
        return self.at_once.hit_rate - self.anchor.hit_rate

    @property
    def is_met(self) -> bool:
        return abs(self.off) <= MOST_OFF


FILES: Final = {
    "conversation": "mooncake/conversation_trace.jsonl",
    "synthetic": "mooncake/synthetic_trace.jsonl",
    "arXiv head": "dynamo/mooncake_trace_1000.jsonl",
    "agentic": "aiperf_agentic/dataset.jsonl",
}
"""Where each is in a folder of traces."""

ANCHORS: Final[Mapping[str, Mapping[str, Anchor]]] = {
    "conversation": {
        "random": Anchor(0.051, 1.49, 5.1),
        "round robin": Anchor(0.051, 1.12, 4.1),
        "longest match": Anchor(0.052, 5.4, 13.5),
        "least work": Anchor(0.098, 0.80, 2.6),
    },
    "synthetic": {
        "random": Anchor(0.041, 2.23, 7.3),
        "round robin": Anchor(0.046, 1.50, 4.4),
        "hash of first block": Anchor(0.265, 1.55, 5.3),
        "longest match": Anchor(0.276, 1.28, 4.3),
        "least work": Anchor(0.259, 0.78, 2.8),
    },
    "arXiv head": {
        "random": Anchor(0.293, 1.23, 5.3),
        "round robin": Anchor(0.288, 1.07, 5.0),
        "longest match": Anchor(0.296, 1.70, 7.7),
        "least work": Anchor(0.309, 0.55, 1.9),
    },
    "agentic": {
        "random": Anchor(0.389, 8.2, 22.9),
        "round robin": Anchor(0.404, 5.0, 11.1),
        "longest match": Anchor(0.604, 16.2, 78.2),
        "least work": Anchor(0.811, 1.5, 5.7),
    },
}
"""Eight replicas of 307,328 tokens. The hash of the first block is left out where it sends (nearly)
everything to one replica."""


def points(folder: Path) -> Iterator[Point]:
    """Those of every trace that the folder has, one run each."""
    for trace, file in FILES.items():
        if (folder / file).exists():
            found = read_trace(folder / file)
            for policy, anchor in ANCHORS[trace].items():
                runs = [replayed(found, policy, profile) for profile in (AT_ONCE, COMPUTED)]
                yield Point(trace, policy, anchor, *runs)


def replayed(found: TraceFile, policy: str, profile: Profile, replicas: int = REPLICAS) -> Figures:
    """The rows as they are, under a toy policy."""
    fleet = Fleet(
        profile=profile,
        replicas=replicas,
        block_size=found.block_tokens,
        event_delay_s=0.0,
        network_s=0.0,
    )
    dialogues = [_one_token(row) for row in dialogues_of(found, is_keyed=True)]
    simulation = Simulation(
        fleet,
        Traffic([Stage("all", dialogues)]),
        lambda rng: TOYS[policy](rng, lambda: simulation.world.timeline.now),
    )
    return simulation.run().total


def _one_token(dialogue: Dialogue) -> Dialogue:
    return replace(dialogue, turns=tuple(replace(ask, output_tokens=1) for ask in dialogue.turns))


def add_row(table: Table, point: Point) -> None:
    """One line of `empty_table`."""
    anchor, computed = point.anchor, point.computed
    table.add_row(
        point.trace,
        point.policy,
        f"{100 * anchor.hit_rate:.1f}",
        f"{100 * point.at_once.hit_rate:.1f}",
        f"{100 * point.off:+.1f}",
        "met" if point.is_met else "MISSED",
        f"{100 * computed.hit_rate:.1f}",
        f"{anchor.mean_s:.2f} / {anchor.p95_s:.1f}",
        f"{computed.ttft_mean_ms / 1e3:.2f} / {computed.ttft_p95_ms / 1e3:.1f}",
    )


def empty_table() -> Table:
    """Hit rates in percent."""
    table = Table(title="regression anchors: toy policies on 8 replicas, prefill only")
    for name in ("trace", "policy"):
        table.add_column(name)
    names = ("hit %", "simulated", "off, points", "within 1 point")
    for name in (*names, "computed: hit %", "mean / P95 s", "simulated"):
        table.add_column(name, justify="right")
    return table
