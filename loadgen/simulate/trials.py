"""Single runs by name, here or in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.outcome import Figures
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.suite import Case, cases


@dataclass(frozen=True, slots=True)
class Trial:
    """`oracle_samples`: regret of about so many requests of the run; 0: of none."""

    case: str
    policy: str
    seed: int
    oracle_samples: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: as a whole, and stage by stage."""

    total: Figures
    stages: Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """How another process makes the same cases. `changes`: of every case's fleet."""

    trace: Path | None
    changes: Mapping[str, int | float]

    def cases(self) -> Mapping[str, Case]:
        return {
            name: replace(case, fleet=replace(case.fleet, **self.changes))  # type: ignore[arg-type]
            for name, case in cases(self.trace).items()
        }


class Workers(Protocol):
    """Who runs them. Results come in the order of the trials."""

    def measure(self, trials: Sequence[Trial]) -> Iterator[Measured]: ...


@dataclass(frozen=True, slots=True)
class Here:
    """One after the other in this process."""

    known: Mapping[str, Case]

    def measure(self, trials: Sequence[Trial]) -> Iterator[Measured]:
        return (measure(self.known[trial.case], trial) for trial in trials)


@dataclass(frozen=True, slots=True)
class Processes:
    """So many at once, each on a core of its own."""

    catalogue: Catalogue
    number: int

    def measure(self, trials: Sequence[Trial]) -> Iterator[Measured]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.number, mp_context=context) as pool:
            yield from pool.map(_measure_named, [self.catalogue] * len(trials), trials)


def _measure_named(catalogue: Catalogue, trial: Trial) -> Measured:
    return measure(catalogue.cases()[trial.case], trial)


def measure(case: Case, trial: Trial) -> Measured:
    """Run it."""
    maker = policy_maker(trial.policy)
    traffic = case.make(trial.seed)
    samples = trial.oracle_samples
    every = max(1, traffic.requests // samples) if samples else 0
    result = Simulation(case.fleet, traffic, maker, trial.seed, every).run()
    return Measured(result.total, result.stages)
