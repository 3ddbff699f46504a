"""What first tokens teach, and what that makes of the prompts that still wait."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from router.index.claims import Computed
from router.index.reservations import Reservations
from router.replicas import ReplicaId
from router.routing.lessons import Lesson, Lessons
from router.routing.speeds import Speeds
from router.routing.ttft import Sample, Ttft

USUAL: Final = 1000, 0.0, 0
"""A prompt by which speeds are compared: tokens, wait, how many decode."""
REPRICED_AT: Final = 0.05
"""Who is found to be so much slower or faster has another queue than was thought."""


class Where(NamedTuple):
    """Who is like a replica, and the way there and back."""

    fleet: str
    distance_ms: float


@dataclass(slots=True)
class Learner:
    """A queue is priced by what was known when its prompts were sent. Who turns out to be slow has
    a longer one than was booked there, and would go on to look like a good place to wait."""

    reservations: Reservations
    speeds: Speeds
    lessons: Lessons = field(init=False)
    _sent_to: dict[ReplicaId, Where] = field(default_factory=dict)
    _priced: dict[ReplicaId, float] = field(default_factory=dict)
    """What a prompt took there in ms by what was known when the queue was priced last."""
    _fleets: dict[str, float] = field(default_factory=dict)
    """The same of replicas that have shown nothing of their own."""

    def __post_init__(self) -> None:
        self.lessons = Lessons(self.speeds, self.reservations.siblings)

    def sent(self, replica_id: ReplicaId, fleet: str, distance_ms: float) -> None:
        """A prompt goes there."""
        self._sent_to[replica_id] = Where(fleet, distance_ms)

    def forget(self, replica_id: ReplicaId) -> None:
        """It left."""
        self._sent_to.pop(replica_id, None)
        self._priced.pop(replica_id, None)

    def learn(self, batch: Computed) -> None:
        """These prompts were computed. O(1), and O(replicas) when the fleet has another speed."""
        where = self._sent_to.get(batch.replica_id)
        if where is None or not batch.is_lesson:
            return
        way_ms = where.distance_ms if batch.is_alone else 0.0
        service_ms = max((batch.ended - batch.began) * 1e3 - way_ms, 0.0)
        sample = Sample(
            batch.uncached_tokens, batch.hit_tokens, batch.running, service_ms, batch.is_alone,
            batch.pairs,
        )  # fmt: skip
        lesson = Lesson(batch.replica_id, where.fleet, batch.began, batch.ended, sample)
        self.lessons.learn(lesson, self.reservations.others.quiet)
        self._learnt(batch.replica_id, where.fleet)

    def listen(self) -> None:
        """Learn of prompts whose step is over, and what siblings have learnt."""
        for batch in self.reservations.over():
            self.learn(batch)
        for replica_id, fleet in self.lessons.listen():
            self._learnt(replica_id, fleet)

    def _learnt(self, replica_id: ReplicaId, fleet: str) -> None:
        usual_ms = self.speeds.of_fleet(fleet).predict_ms(*USUAL)
        if _has_changed(self._fleets.get(fleet), usual_ms):
            self._fleets[fleet] = usual_ms
            self._reprice([i for i, each in self._sent_to.items() if each.fleet == fleet])
        elif replica_id in self._sent_to:
            self._reprice((replica_id,))

    def _reprice(self, replica_ids: Iterable[ReplicaId]) -> None:
        for replica_id in replica_ids:
            ttft: Ttft = self.speeds.of(replica_id, self._sent_to[replica_id].fleet)
            now_ms = ttft.predict_ms(*USUAL)
            if _has_changed(self._priced.get(replica_id), now_ms):
                self._priced[replica_id] = now_ms
                self.reservations.reprice(replica_id, ttft)


def _has_changed(before_ms: float | None, now_ms: float) -> bool:
    return before_ms is None or abs(now_ms - before_ms) > REPRICED_AT * before_ms
