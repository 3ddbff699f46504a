"""Which replicas are slower than those that are alike, and by how much."""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from msgspec.structs import replace

from router.replicas import ReplicaId
from router.routing.ttft import FIRST_SAMPLES, PRIOR, Sample, Ttft, TtftModel, predicted_ms

PACE_SAMPLES: Final = 15
"""The last samples of a replica that its factor is of."""
PACE_PRIOR_SAMPLES: Final = 3.0
"""So many samples' worth of belief that a replica is like its fleet."""
NOISE_BOUND: Final = 2.0
"""A difference within two standard errors is taken for chance."""
MOST_OFF: Final = 8.0


@dataclass(slots=True)
class _Pace:
    """How much slower than its fleet a replica is: the median of time taken over time predicted.

    A median, because a stall, however long, is a few samples. And only by how much it is beyond
    what chance makes of a median of so few: else equal replicas would look different all the time,
    and conversations would move for nothing. Standard error of a median: 1.25 σ / √n, with σ from
    the median of absolute deviations (1.48 of it for a normal distribution), in logarithms.
    """

    factor: float = 1.0
    _logs: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_SAMPLES))
    _fleet: Ttft | None = None
    _middle: float = 1.0
    _own: Ttft = PRIOR

    def of(self, fleet: Ttft, middle: float) -> Ttft:
        """The fleet's estimate at this pace, where `middle` is its usual one."""
        if self.factor == middle:
            return fleet
        if fleet is not self._fleet or middle != self._middle:
            self._fleet, self._middle = fleet, middle
            self._own = fleet.scaled(self.factor / middle)
        return self._own

    def observe(self, taken_ms: float, predicted_ms: float) -> None:
        ratio = min(max(taken_ms / predicted_ms, 1 / MOST_OFF), MOST_OFF)
        self._logs.append(math.log(ratio))
        count = len(self._logs)
        middle = median(self._logs)
        deviation = median(abs(value - middle) for value in self._logs)
        noise = NOISE_BOUND * 1.25 * 1.48 * deviation / math.sqrt(count)
        beyond = max(0.0, abs(middle) - noise) * count / (count + PACE_PRIOR_SAMPLES)
        self.factor = math.exp(math.copysign(beyond, middle))
        self._fleet = None


@dataclass(slots=True)
class _Fleet:
    """Replicas that are alike. `middle`: the median of their factors.

    A replica is compared with that, not with the regression: else all of a fleet could seem twice
    as fast as a regression that is told, of each sample, what it would have been at half the speed.
    """

    model: TtftModel = field(default_factory=TtftModel)
    paces: dict[ReplicaId, _Pace] = field(default_factory=dict)
    middle: float = 1.0

    def observe(self, replica_id: ReplicaId, sample: Sample) -> None:
        pace = self.paces.get(replica_id)
        if pace is None:
            pace = self.paces[replica_id] = _Pace()
        if self.model.samples >= FIRST_SAMPLES:
            pace.observe(sample.service_ms, max(predicted_ms(self.model.ttft, sample), 1.0))
            self.middle = median([one.factor for one in self.paces.values()])
        apart = pace.factor / self.middle
        self.model.observe(replace(sample, service_ms=sample.service_ms / apart))


@dataclass(slots=True)
class Speeds:
    """What replicas have shown of their speed: one model per fleet, one factor per replica.

    Replicas of one model are mostly alike, and each alone shows too little, under too little
    variety of load, to tell its parameters apart. So all of a fleet's replies teach one
    regression, and each replica only how much slower or faster than the others it is (a factor,
    drawn to 1). `fleet`: any name that says which replicas are alike (the base model's).
    """

    _fleets: dict[str, _Fleet] = field(default_factory=dict)

    def of(self, replica_id: ReplicaId, fleet: str) -> Ttft:
        """The replica's estimate; one that has shown nothing is like its fleet."""
        alike = self._fleets.get(fleet)
        if alike is None:
            return PRIOR
        pace = alike.paces.get(replica_id)
        return alike.model.ttft if pace is None else pace.of(alike.model.ttft, alike.middle)

    def observe(self, replica_id: ReplicaId, fleet: str, sample: Sample) -> None:
        """A prompt was computed there. O(the fleet's replicas)."""
        alike = self._fleets.get(fleet)
        if alike is None:
            alike = self._fleets[fleet] = _Fleet()
        alike.observe(replica_id, sample)

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left; what it taught its fleet stays."""
        for alike in self._fleets.values():
            alike.paces.pop(replica_id, None)
