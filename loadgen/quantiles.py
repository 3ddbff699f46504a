"""Percentiles of raw samples: sorted, with linear interpolation, never from buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

Z_95: Final = 1.96


class Quantiles(msgspec.Struct, frozen=True):
    """In the samples' unit; `p95_ci` is a 95 % interval of p95. All None without samples.

    JSON has no infinity: there an infinite percentile is the string "inf".
    """

    n: int
    mean: float | None = None
    p50: float | str | None = None
    p90: float | str | None = None
    p95: float | str | None = None
    p99: float | str | None = None
    max: float | str | None = None
    p95_ci: tuple[float | str, float | str] | None = None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest ranks (numpy's default); `ordered` ascends."""
    if not ordered:
        raise ValueError("no samples")
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    # Equal neighbours first: inf - inf is not a number.
    if ordered[low] == ordered[high] or position == low:
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def confidence(ordered: Sequence[float], share: float) -> tuple[float, float]:
    """95 % interval of a percentile from order statistics: ranks n·q ± 1.96·sqrt(n·q·(1-q))."""
    n = len(ordered)
    half = Z_95 * math.sqrt(n * share * (1 - share))
    low = max(0, math.floor(n * share - half))
    high = min(n - 1, math.ceil(n * share + half))
    return ordered[low], ordered[high]


def quantiles(samples: Iterable[float]) -> Quantiles:
    """Of all samples; infinite ones (failures) count as the largest."""
    ordered = sorted(samples)
    if not ordered:
        return Quantiles(n=0)
    mean = math.fsum(ordered) / len(ordered)
    low, high = confidence(ordered, 0.95)
    return Quantiles(
        n=len(ordered),
        mean=mean if math.isfinite(mean) else None,
        p50=_plain(percentile(ordered, 0.50)),
        p90=_plain(percentile(ordered, 0.90)),
        p95=_plain(percentile(ordered, 0.95)),
        p99=_plain(percentile(ordered, 0.99)),
        max=_plain(ordered[-1]),
        p95_ci=(_plain(low), _plain(high)),
    )


def _plain(value: float) -> float | str:
    return round(value, 3) if math.isfinite(value) else "inf"
