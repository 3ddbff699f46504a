"""Is a difference between two runs real? Bootstrap over conversations, not over requests.

Turns of one conversation depend on each other, so conversations are drawn (with replacement), and
the same ones for both sides: they sent the same prompts. An interval that holds zero is noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from loadgen.quantiles import percentile
from loadgen.record import Record

RESAMPLES: Final = 400
MAX_RECORDS: Final = 2_000_000
"""Records sorted in all resamples together: with more requests, fewer resamples."""

MIN_RESAMPLES: Final = 100
Key = tuple[int, str]
Clusters = Mapping[Key, Sequence[Record]]
Figure = Callable[[Sequence[Record]], float | None]


class Difference(msgspec.Struct, frozen=True):
    """`of` minus `base`; `ratio` is of / base. `low` and `high`: 95 % interval of the difference.

    `is_noise`: the interval holds zero, or there were too few to have one.
    """

    metric: str
    unit: str
    base: float | None
    of: float | None
    difference: float | None
    ratio: float | None
    low: float | None
    high: float | None
    is_noise: bool


def _percentile(share: float) -> Figure:
    def figure(records: Sequence[Record]) -> float | None:
        values = sorted(1e3 * r.ttft_s for r in records if r.is_ok and r.ttft_s is not None)
        return percentile(values, share) if values else None

    return figure


def _mean_ttft(records: Sequence[Record]) -> float | None:
    values = [1e3 * r.ttft_s for r in records if r.is_ok and r.ttft_s is not None]
    return sum(values) / len(values) if values else None


def _hit_rate(records: Sequence[Record]) -> float | None:
    told = [r for r in records if r.is_ok and r.cached_tokens is not None]
    prompt = sum(r.prompt_tokens or 0 for r in told)
    return 100 * sum(r.cached_tokens or 0 for r in told) / prompt if prompt else None


def _tpot(records: Sequence[Record]) -> float | None:
    values = [1e3 * t for r in records if r.is_ok and (t := r.tpot_s) is not None]
    return sum(values) / len(values) if values else None


def _errors(records: Sequence[Record]) -> float | None:
    return 100 * sum(not r.is_ok for r in records) / len(records) if records else None


FIGURES: Final[Mapping[str, tuple[str, Figure]]] = {
    "P50 TTFT": ("ms", _percentile(0.50)),
    "P95 TTFT": ("ms", _percentile(0.95)),
    "mean TTFT": ("ms", _mean_ttft),
    "mean TPOT": ("ms", _tpot),
    "hit rate": ("points", _hit_rate),
    "errors": ("points", _errors),
}


def clusters(runs: Sequence[Sequence[Record]]) -> dict[Key, list[Record]]:
    """By repeat and conversation."""
    found: dict[Key, list[Record]] = {}
    for repeat, records in enumerate(runs):
        for record in records:
            # Sub-agents belong to their task.
            found.setdefault((repeat, record.session.partition(".")[0]), []).append(record)
    return found


def differences(base: Clusters, of: Clusters, seed: int = 0) -> list[Difference]:
    """One for each of `FIGURES`."""
    draws = _draws(base, of, random.Random(f"bootstrap {seed}"))
    return [_difference(name, base, of, draws) for name in FIGURES]


def _draws(base: Clusters, of: Clusters, rng: random.Random) -> list[list[Key]]:
    keys = sorted(base.keys() | of.keys())
    records = sum(map(len, base.values())) + sum(map(len, of.values())) or 1
    count = max(MIN_RESAMPLES, min(RESAMPLES, MAX_RECORDS // records))
    return [rng.choices(keys, k=len(keys)) for _ in range(count)] if len(keys) > 1 else []


def _difference(name: str, base: Clusters, of: Clusters, draws: Sequence[list[Key]]) -> Difference:
    unit, figure = FIGURES[name]
    first, second = (figure(_flat(side, side.keys())) for side in (base, of))
    if first is None or second is None:
        return Difference(name, unit, first, second, None, None, None, None, True)
    found = sorted(
        b - a
        for keys in draws
        if (a := figure(_flat(base, keys))) is not None
        and (b := figure(_flat(of, keys))) is not None
    )
    low, high = (percentile(found, 0.025), percentile(found, 0.975)) if found else (None, None)
    is_noise = low is None or high is None or low <= 0 <= high
    ratio = second / first if first else None
    return Difference(name, unit, first, second, second - first, ratio, low, high, is_noise)


def _flat(side: Clusters, keys: Iterable[Key]) -> list[Record]:
    return [record for key in keys for record in side.get(key, ())]
