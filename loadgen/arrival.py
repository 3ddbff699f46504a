"""When requests are due, in seconds from the run's start: an open loop waits for no answer."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Final

ARRIVALS: Final = ("poisson", "constant")


def constant_times(rate_per_s: float) -> Iterator[float]:
    """0, 1/rate, 2/rate, …; all zero when the rate is infinite."""
    number = 0
    while True:
        yield number / rate_per_s
        number += 1


def poisson_times(
    rate_per_s: float, rng: random.Random, burstiness: float = 1.0
) -> Iterator[float]:
    """The first at zero, then gamma distributed gaps with mean 1/rate.

    `burstiness` is the gamma shape: 1 is a Poisson process, below 1 comes in bursts, above 1 is
    more even. The gap's coefficient of variation is 1/sqrt(burstiness). Times are not rescaled
    so that the last one lands on n/rate: that would hide how far a short run is from its rate.
    """
    now = 0.0
    while True:
        yield now
        if not math.isinf(rate_per_s):
            now += rng.gammavariate(burstiness, 1 / (rate_per_s * burstiness))


def arrival_times(
    kind: str, rate_per_s: float, rng: random.Random, burstiness: float = 1.0
) -> Iterator[float]:
    """Endless times for `--arrival`. ValueError for an unknown kind or a rate that is not > 0."""
    if not rate_per_s > 0 or not burstiness > 0:
        raise ValueError("rate and burstiness must be positive")
    if kind == "constant":
        return constant_times(rate_per_s)
    if kind == "poisson":
        return poisson_times(rate_per_s, rng, burstiness)
    raise ValueError(f"unknown arrival {kind!r}: one of {', '.join(ARRIVALS)}")
