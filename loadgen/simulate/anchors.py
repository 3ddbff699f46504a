"""Regression anchors: hit rates that toy policies have on public traces, computed by other code.

There a replica is an LRU list of blocks that prompts enter as they arrive, and computes 15,000
tokens a second, one prompt after the other; nothing is decoded. Here the same rows go through the
router's chooser and index and through the engine's scheduler and pool, set up to be as simple: one
sequence at a time, whole in one step, one token of answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from rich.table import Table

from loadgen.simulate.fleet import Fleet
from loadgen.simulate.outcome import Figures
from loadgen.simulate.patterns import dialogues_of
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.toys import TOYS
from loadgen.simulate.traffic import Dialogue, Stage, Traffic
from loadgen.workload.formats import TraceFile, read_trace
from workers.engine.profile import Profile

REPLICAS: Final = 8
MOST_OFF: Final = 0.01
BLOCK_TOKENS: Final = 512

PREFILL_ONLY: Final = Profile(
    name="prefill-only",
    basis="15,000 prompt tokens a second and nothing else",
    step_ms=0.0,
    decode_ms_per_sequence=0.0,
    decode_ms_per_kv_token=0.0,
    prefill_ms_per_token=1 / 15.0,
    prefill_ms_per_token_squared=0.0,
    kv_tokens=307_328,
    max_model_len=307_328,
    max_num_batched_tokens=307_328,
    max_num_seqs=1,
)


class Anchor(NamedTuple):
    """Share of prompt tokens that hit; queue and prefill in seconds."""

    hit_rate: float
    mean_s: float
    p95_s: float


class Point(NamedTuple):
    """An anchor beside what the simulator says."""

    trace: str
    policy: str
    anchor: Anchor
    simulated: Figures

    @property
    def off(self) -> float:
        return self.simulated.hit_rate - self.anchor.hit_rate

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
                yield Point(trace, policy, anchor, replayed(found, policy))


def replayed(found: TraceFile, policy: str, replicas: int = REPLICAS, seed: int = 0) -> Figures:
    """The rows as they are, under a toy policy."""
    fleet = Fleet(
        profile=PREFILL_ONLY,
        replicas=replicas,
        block_size=found.block_tokens,
        event_delay_s=0.0,
        network_s=0.0,
    )
    dialogues = [_one_token(row) for row in dialogues_of(found, is_keyed=True)]
    return Simulation(fleet, Traffic([Stage("all", dialogues)]), TOYS[policy], seed).run().total


def _one_token(dialogue: Dialogue) -> Dialogue:
    return replace(dialogue, turns=tuple(replace(ask, output_tokens=1) for ask in dialogue.turns))


def add_row(table: Table, point: Point) -> None:
    """One line of `empty_table`."""
    anchor, figures = point.anchor, point.simulated
    table.add_row(
        point.trace,
        point.policy,
        f"{100 * anchor.hit_rate:.1f}",
        f"{100 * figures.hit_rate:.1f}",
        f"{100 * point.off:+.1f}",
        f"{anchor.mean_s:.2f} / {anchor.p95_s:.1f}",
        f"{figures.ttft_mean_ms / 1e3:.2f} / {figures.ttft_p95_ms / 1e3:.1f}",
        "met" if point.is_met else "MISSED",
    )


def empty_table() -> Table:
    """Hit rates in percent."""
    table = Table(title="regression anchors: toy policies on 8 replicas, prefill only")
    for name in ("trace", "policy"):
        table.add_column(name)
    for name in ("hit %", "simulated", "off, points", "mean / P95 s", "simulated", "within 1 point"):
        table.add_column(name, justify="right")
    return table
