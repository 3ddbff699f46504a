"""Which replicas are slower than those that are alike, and by how much."""

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from router.replicas import ReplicaId
from router.routing.ttft import PRIOR, SURE_SAMPLES, Sample, Ttft, TtftModel, predicted_ms

PACE_SAMPLES: Final = 15
"""The last samples of a replica that its factor is of."""
PACE_PRIOR_SAMPLES: Final = 1.0
"""So many samples' worth of belief that a replica is like its fleet."""
NOISE_BOUND: Final = 2.0
"""A difference within two standard errors is taken for chance."""
USUAL_DEVIATION: Final = 0.2
"""By how much samples are off, before a fleet has shown it: a fifth."""
ENOUGH: Final = 4
"""So many samples show a deviation: that of one or two is next to nothing, by chance."""
MOST_OFF: Final = 8.0
LATE: Final = 1.25
"""Who takes so many times as long as predicted and isn't done is late: no prediction is better."""


@dataclass(slots=True)
class _Pace:
    """One replica's last samples, and what they say: times over predicted times, in logarithms.

    `middle`: their median, because a stall, however long, is a few samples. `deviation`: the median
    of what they are off it.
    """

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=PACE_SAMPLES))
    logs: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_SAMPLES))
    model: Ttft = PRIOR
    """That `logs` are by."""
    middle: float = 0.0
    deviation: float = 0.0
    factor: float = 1.0
    own: tuple[Ttft, Ttft, float] | None = None
    """The fleet's estimate, this replica's by it, and the factor."""

    def take(self, sample: Sample) -> None:
        """It has shown this."""
        self.samples.append(sample)
        self.logs.append(self._off(sample))
        self._sum_up()

    def compare(self, model: Ttft) -> None:
        """With what the model says now: what it said when they were taken was another's speed."""
        if model is not self.model:
            self.model = model
            self.logs.clear()
            self.logs.extend([self._off(sample) for sample in self.samples])
            self._sum_up()

    def _sum_up(self) -> None:
        middle = self.middle = _median(self.logs)
        self.deviation = _median([abs(value - middle) for value in self.logs])

    def _off(self, sample: Sample) -> float:
        return off(sample.service_ms, predicted_ms(self.model, sample))


@dataclass(slots=True)
class _Fleet:
    """Replicas that are alike. `middle`, `deviation`: the medians of theirs.

    A replica is compared with the others, not with the regression: that follows all of them late,
    and of a fleet that is twice as fast as it says, none is fast.
    """

    model: TtftModel = field(default_factory=TtftModel)
    paces: dict[ReplicaId, _Pace] = field(default_factory=dict)
    middle: float = 0.0
    deviation: float = USUAL_DEVIATION
    _seen: Ttft | None = None

    def observe(self, replica_id: ReplicaId, sample: Sample) -> None:
        if (pace := self.paces.get(replica_id)) is None:
            pace = self.paces[replica_id] = _Pace()
        pace.take(sample)
        if self.model.ttft is not self._seen:
            self._seen = self.model.ttft
            self._compare(pace)
        pace.factor = self.factor(pace.logs, pace.middle, pace.deviation)
        self.model.observe(replace(sample, service_ms=sample.service_ms / pace.factor))

    def _compare(self, pace: _Pace) -> None:
        """Who has shown something new, and another one in turn, or all while the model is new."""
        changed = list(self.paces.values())
        if self.model.samples > SURE_SAMPLES:
            oldest = next(iter(self.paces))
            other = self.paces[oldest] = self.paces.pop(oldest)
            changed = [pace, other]
        for one in changed:
            one.compare(self.model.ttft)
        paces = self.paces.values()
        self.middle = _median([one.middle for one in paces])
        shown = [one.deviation for one in paces if len(one.logs) >= ENOUGH]
        self.deviation = _median(shown) if shown else USUAL_DEVIATION
        for one in changed:
            one.factor = self.factor(one.logs, one.middle, one.deviation)

    def factor(self, logs: Collection[float], middle: float, deviation: float) -> float:
        """How many times as long as the others it takes.

        Only by how much it is beyond what chance makes of a median of so few: else equal replicas
        would look different all the time, and conversations would move for nothing. Standard error
        of a median: 1.25 σ / √n, with σ from the median of absolute deviations (1.48 of it for a
        normal distribution).
        """
        count, off = len(logs), middle - self.middle
        noise = NOISE_BOUND * 1.25 * 1.48 * max(deviation, self.deviation) / math.sqrt(count)
        beyond = max(0.0, abs(off) - noise) * count / (count + PACE_PRIOR_SAMPLES)
        return math.exp(math.copysign(beyond, off))

    def late(self, pace: _Pace | None, times: float) -> float:
        """The same of one that has taken so many times as long as predicted, and isn't done: one
        more sample, of which it is known that it is at least that."""
        known, shown = (pace.factor, pace.logs) if pace is not None else (1.0, ())
        logs = [*shown, off(times * known, 1.0)]
        middle = _median(logs)
        deviation = _median([abs(value - middle) for value in logs])
        return max(known, self.factor(logs, middle, deviation))


@dataclass(slots=True)
class Speeds:
    """What replicas have shown of their speed: one model per fleet, one factor per replica.

    Replicas of one model are mostly alike, and each alone shows too little, under too little
    variety of load, to tell its parameters apart. So all of a fleet's replies teach one
    regression, and each replica only how much slower or faster than the others it is (a factor,
    drawn to 1). `fleet`: any name that says which replicas are alike (the base model's).
    """

    _fleets: dict[str, _Fleet] = field(default_factory=dict)

    def of(self, replica_id: ReplicaId, fleet: str, late: float = 0.0) -> Ttft:
        """The replica's estimate; one that has shown nothing is like its fleet.

        `late`: the prompt at its head has taken so many times as long as was predicted, and isn't
        done: so it may be slow, which is all that is known of one that has answered nothing yet.
        """
        alike = self._fleets.get(fleet)
        if alike is None:
            return PRIOR
        pace, model = alike.paces.get(replica_id), alike.model.ttft
        if late > LATE:
            return model.scaled(alike.late(pace, late))
        if pace is None or pace.factor == 1.0:
            return model
        if pace.own is None or pace.own[0] is not model or pace.own[2] != pace.factor:
            pace.own = model, model.scaled(pace.factor), pace.factor
        return pace.own[1]

    def of_fleet(self, fleet: str) -> Ttft:
        """The estimate of one that has shown nothing."""
        alike = self._fleets.get(fleet)
        return PRIOR if alike is None else alike.model.ttft

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


def off(taken_ms: float, predicted_ms: float) -> float:
    """The logarithm of how many times as long as predicted it took."""
    ratio = taken_ms / max(predicted_ms, 1.0)
    return math.log(min(max(ratio, 1 / MOST_OFF), MOST_OFF))


def _median(values: Collection[float]) -> float:
    """As that of `statistics`, which takes five times as long for so few."""
    ordered, middle = sorted(values), len(values) // 2
    if len(values) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
