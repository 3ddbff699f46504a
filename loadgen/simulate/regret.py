"""Regret: how much later the chosen replica's first token comes than the best one's would."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.simulate.engine import SimEngine
from loadgen.simulate.foresight import ttft_at


@dataclass(slots=True)
class Oracle:
    """Knows what each engine will do with what it has, and this request added: exactly.

    What later requests do is unknown to it as to the policy. `regret`: extra mean TTFT of the
    choices over the best ones, as a share of the mean TTFT. `later`: the same of those that were
    made when every replica had answered something: before, nobody can know how slow one is.
    """

    every: int
    _count: int = 0
    _chosen_s: list[float] = field(default_factory=list)
    _best_s: list[float] = field(default_factory=list)
    _unknown: int = 0
    """Of the compared ones, the first: those made when some replica had answered nothing."""

    @property
    def regret(self) -> float:
        return _regret(self._chosen_s, self._best_s)

    @property
    def later(self) -> float:
        return _regret(self._chosen_s[self._unknown :], self._best_s[self._unknown :])

    def compare(
        self,
        engines: Mapping[str, SimEngine],
        candidates: Sequence[str],
        chosen: str,
        hashes: Sequence[int],
        tokens: array[int],
    ) -> None:
        """Look at one of `every` requests."""
        self._count += 1
        if not self.every or self._count % self.every:
            return
        if not all(engines[name].tally.requests for name in candidates):
            self._unknown = len(self._best_s) + 1
        times = {name: ttft_at(engines[name], tokens, hashes) for name in candidates}
        self._chosen_s.append(times[chosen])
        self._best_s.append(min(times.values()))


def _regret(chosen_s: Sequence[float], best_s: Sequence[float]) -> float:
    best = sum(best_s)
    return (sum(chosen_s) - best) / best if best else 0.0
