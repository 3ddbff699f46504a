"""What was seen of a replica's speed, held until it is known that nobody else was in the way.

Other routers' load is heard late. A prompt that waited behind theirs, or was computed in one step
with theirs, seems to show a slow replica, and each router would see other replicas as slow. So
where there are others, a lesson waits for their words about its time, and is dropped if they had
prompts there.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from router.replicas import ReplicaId
from router.routing.speeds import Speeds
from router.routing.ttft import Sample, predicted_ms

MOST_HELD: Final = 1024
MOST_DROPPED: Final = 32
"""Of so many in a row that others were in the way of, the quickest for its length teaches after
all: in a fleet that is never quiet it comes nearest to the truth."""


class Lesson(Struct, frozen=True, gc=False):
    """A sample of one replica, and from when to when it was taken, in seconds of the clock."""

    replica_id: ReplicaId
    fleet: str
    began: float
    ended: float
    sample: Sample


@dataclass(slots=True)
class Lessons:
    """In the order of their ends; beyond `MOST_HELD` the oldest are forgotten."""

    speeds: Speeds
    _held: deque[Lesson] = field(default_factory=lambda: deque(maxlen=MOST_HELD))
    _dropped: dict[str, list[Lesson]] = field(default_factory=dict)

    def learn(
        self, lesson: Lesson, quiet: Callable[[ReplicaId, float, float], bool | None]
    ) -> None:
        """Hold it, and learn from those of which it is known that the others kept `quiet`."""
        self._held.append(lesson)
        while self._held:
            first = self._held[0]
            was_quiet = quiet(first.replica_id, first.began, first.ended)
            if was_quiet is None:
                return
            self._held.popleft()
            if was_quiet:
                self._teach(first)
            else:
                self._drop(first)

    def _teach(self, lesson: Lesson) -> None:
        self._dropped.pop(lesson.fleet, None)
        self.speeds.observe(lesson.replica_id, lesson.fleet, lesson.sample)

    def _drop(self, lesson: Lesson) -> None:
        dropped = self._dropped.setdefault(lesson.fleet, [])
        dropped.append(lesson)
        if len(dropped) >= MOST_DROPPED:
            self._teach(min(dropped, key=self._slowness))

    def _slowness(self, lesson: Lesson) -> float:
        sample, ttft = lesson.sample, self.speeds.of(lesson.replica_id, lesson.fleet)
        return sample.service_ms / max(predicted_ms(ttft, sample), 1.0)
