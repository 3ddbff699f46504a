"""When requests are due, in seconds from the run's start: an open loop waits for no answer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

ARRIVALS: Final = ("poisson", "gamma", "constant")
RAMPS: Final = ("linear", "exponential")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """The rate goes from one to another within `seconds`, and stays there."""

    strategy: str
    start_per_s: float
    end_per_s: float
    seconds: float

    def __post_init__(self) -> None:
        if self.strategy not in RAMPS:
            raise ValueError(f"unknown ramp {self.strategy!r}: one of {', '.join(RAMPS)}")
        if not min(self.start_per_s, self.end_per_s, self.seconds) > 0:
            raise ValueError("a ramp's rates and its seconds must be positive")

    def time_of(self, number: float) -> float:
        """When `number` requests have come: the inverse of the rate's integral."""
        start, end, seconds = self.start_per_s, self.end_per_s, self.seconds
        within = self._within()
        if number > within:
            return seconds + (number - within) / end
        if start == end:
            return number / start
        if self.strategy == "exponential":
            growth = math.log(end / start) / seconds
            return math.log1p(number * growth / start) / growth
        slope = (end - start) / seconds
        return (math.sqrt(max(0.0, start * start + 2 * slope * number)) - start) / slope

    def _within(self) -> float:
        """Requests that come while the rate changes."""
        start, end = self.start_per_s, self.end_per_s
        if self.strategy == "linear" or start == end:
            return self.seconds * (start + end) / 2
        return self.seconds * (end - start) / math.log(end / start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """`kind` "poisson" and "gamma" differ in name only: `burstiness` 1 is a Poisson process.

    A `ramp` takes the rate's place.
    """

    rate_per_s: float = 4.0
    kind: str = "poisson"
    burstiness: float = 1.0
    ramp: Ramp | None = None

    def times(self, rng: random.Random) -> Iterator[float]:
        """Endless. ValueError for an unknown kind or a rate that is not > 0."""
        if self.ramp is None:
            return arrival_times(self.kind, self.rate_per_s, rng, self.burstiness)
        # Time runs through the integral of the rate: one request per unit of it.
        even = arrival_times(self.kind, 1.0, rng, self.burstiness)
        return map(self.ramp.time_of, even)

    def divided(self, by: float) -> Arrivals:
        """The same for conversations of `by` requests each."""
        ramp = self.ramp and replace(
            self.ramp, start_per_s=self.ramp.start_per_s / by, end_per_s=self.ramp.end_per_s / by
        )
        return replace(self, rate_per_s=self.rate_per_s / by, ramp=ramp)


def constant_times(rate_per_s: float) -> Iterator[float]:
    """0, 1/rate, 2/rate, …; all zero when the rate is infinite."""
    number = 0
    while True:
        yield number / rate_per_s
        number += 1


def gamma_times(rate_per_s: float, rng: random.Random, burstiness: float = 1.0) -> Iterator[float]:
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
    makers: dict[str, Callable[[], Iterator[float]]] = {
        "constant": lambda: constant_times(rate_per_s),
        "poisson": lambda: gamma_times(rate_per_s, rng, burstiness),
        "gamma": lambda: gamma_times(rate_per_s, rng, burstiness),
    }
    if kind not in makers:
        raise ValueError(f"unknown arrival {kind!r}: one of {', '.join(ARRIVALS)}")
    return makers[kind]()
