"""The workloads that policies are compared on: published ones, and ones made to hurt.

Each is a fleet and a generator, and nothing about a policy. Sizes are chosen so that one run takes
seconds; `from`: where the parameters come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from loadgen.simulate import patterns
from loadgen.simulate.fleet import Fleet
from loadgen.simulate.ladder import LADDER_37, LADDER_73
from loadgen.simulate.traffic import MakeTraffic
from workers.engine.profile import load_profile


@dataclass(frozen=True, slots=True)
class Case:
    """One workload on one fleet."""

    name: str
    fleet: Fleet
    make: MakeTraffic
    about: str


A_STAGES: Final = ((15, 50), (20, 38), (40, 38), (60, 25))
A37_STAGES: Final = ((9, 30), (8, 60), (12, 60))


def cases(trace: Path | None = None) -> Mapping[str, Case]:
    """Every workload by name. `trace`: a file that becomes one more, `trace`."""
    found = [*_published(), *_adversarial()]
    if trace is not None:
        found.append(
            Case(
                "trace",
                _fleet("2xh100-32b-llmd", 8),
                lambda seed: patterns.trace(trace, seed),
                f"{trace.name}, 8 replicas of 32B",
            )
        )
    return {case.name: case for case in found}


def _published() -> list[Case]:
    return [
        Case(
            "A",
            _fleet("2xh100-32b-llmd", 8),
            replace(LADDER_73, stages=A_STAGES).traffic,
            "llm-d 73 % capacity: 150 groups x 5 prompts, 6,000 + 1,200 tokens, 1,000 out",
        ),
        Case(
            "A37",
            _fleet("4xh100-70b-llmd", 4),
            replace(LADDER_37, stages=A37_STAGES).traffic,
            "llm-d 37 % capacity: 83 groups x 3 prompts, 8,000 + 1,000 tokens, 1,000 out",
        ),
        Case(
            "C",
            _fleet("a100-80-8b-bf16", 8),
            lambda seed: patterns.groups(
                seed, patterns.Groups(64, 16, 2048, 128, 256, rate_per_s=None)
            ),
            "SGLang generated-shared-prefix: 64 x 16 prompts, 2,048 + 128, 256 out, all at once",
        ),
        Case(
            "F",
            _fleet("h100-8b-bf16", 4, block_size=16),
            patterns.documents,
            "four replicas, 11 documents x 10 turns, 4 clients in a closed loop, after a warm-up",
        ),
        Case(
            "I",
            _fleet("2xh100-32b-llmd", 3, block_size=16),
            lambda seed: patterns.groups(
                seed, patterns.Groups(600, 3, 1024, 256, 256, rate_per_s=12.0)
            ),
            "prefix_repetition: 600 prefixes x 3, 1,024 + 256, 256 out, 3 replicas, 12/s",
        ),
        Case(
            "agentic",
            _fleet("h200-8b-fp8", 4),
            lambda seed: patterns.agents(seed, patterns.Agents()),
            "coding agents: 8k of shared tools, a repository, a session; 12 turns, tool waits",
        ),
    ]


def _adversarial() -> list[Case]:
    def case(name: str, make: Callable[[int], object], about: str, **fleet: object) -> Case:
        base = replace(_fleet("h100-8b-bf16", 4), **fleet)  # type: ignore[arg-type]
        return Case(name, base, make, about)  # type: ignore[arg-type]

    groups, some = patterns.groups, patterns.Groups
    return [
        case("hot-prefix", lambda seed: groups(seed, some(1, 600, 2048, 1024, 64, 50.0)),
             "one prefix for all: affinity brings nothing, imbalance hurts"),
        case("all-unique", lambda seed: groups(seed, some(600, 1, 0, 3000, 64, 25.0)),
             "nothing to reuse"),
        case("sibling-burst", patterns.sibling_bursts,
             "24 siblings of a prompt that nobody holds yet, at once, again and again"),
        case("32k-in-1-out", lambda seed: groups(seed, some(200, 1, 0, 32_000, 1, 1.5)),
             "long prompts, nothing to reuse, no answers", kv_tokens=200_000),
        case("timestamp", lambda seed: groups(seed, some(600, 1, 0, 1997, 120, 40.0)),
             "a fixed prompt with a timestamp in front: nothing can be reused"),
        case("skewed-tenants", lambda seed: groups(
                seed, some(40, 25, 3000, 200, 100, 60.0, zipf=1.2), count=1000),
             "40 tenants whose shares follow 1/k^1.2"),
        case("slow-replica", lambda seed: groups(seed, some(60, 10, 3000, 300, 100, 40.0)),
             "one of four replicas takes three times as long for everything",
             slowness=(3.0,)),
        case("cyclic-scan", lambda seed: patterns.cyclic(seed, 60, 10_000, 600, 16.0),
             "60 long prompts in turn, more than one cache holds and less than all hold",
             kv_tokens=200_000),
    ]  # fmt: skip


def _fleet(profile: str, replicas: int, block_size: int = 64) -> Fleet:
    return Fleet(profile=load_profile(profile), replicas=replicas, block_size=block_size)
