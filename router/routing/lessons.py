"""What was seen of a replica's speed, held until it is known that nobody else was in the way.

Other routers' load is heard late. A prompt that waited behind theirs, or was computed in one step
with theirs, seems to show a slow replica, and each router would see other replicas as slow. So
where there are others, a lesson waits for their words about its time, and is dropped if they had
prompts there.

Processes of one host learn the same: each lesson is told to the others, who learn it too. With
speeds of their own they would make the same choice differently, and what one waits for, because
waiting seems the shorter, the next one would have computed once more.
"""

import math
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from router.index.siblings import NoSiblings, Siblings
from router.replicas import ReplicaId
from router.routing.speeds import Speeds
from router.routing.ttft import Sample, predicted_ms, size_class

MOST_HELD: Final = 1024
MOST_DROPPED: Final = 32
"""Of so many in a row that others were in the way of, the quickest for its length teaches after
all: in a fleet that is never quiet it comes nearest to the truth."""
TOLD_EVERY_S: Final = 0.02
"""All siblings learn all lessons, which takes each of them some 50 µs. So of prompts of one size
each process teaches no more than one in so long, itself included: all shall know the same."""


class Lesson(Struct, frozen=True, gc=False, array_like=True):
    """A sample of one replica, and from when to when it was taken, in seconds of the clock."""

    replica_id: ReplicaId
    fleet: str
    began: float
    ended: float
    sample: Sample


_pack: Final = msgspec.msgpack.encode
_unpack: Final = msgspec.msgpack.Decoder(Lesson).decode


@dataclass(slots=True)
class Lessons:
    """In the order of their ends; beyond `MOST_HELD` the oldest are forgotten.

    `siblings`: who learns the same.
    """

    speeds: Speeds
    siblings: Siblings = field(default_factory=NoSiblings)
    _told_at: dict[int, float] = field(default_factory=dict)
    """When a lesson of this size was told last."""
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

    def listen(self) -> Collection[tuple[ReplicaId, str]]:
        """Learn what siblings have told. Returns of which replicas, and their fleets."""
        if not (words := self.siblings.hear()):
            return ()
        taught = set()
        for word in words:
            with suppress(msgspec.DecodeError):
                lesson = _unpack(word)
                self.speeds.observe(lesson.replica_id, lesson.fleet, lesson.sample)
                taught.add((lesson.replica_id, lesson.fleet))
        return taught

    def _teach(self, lesson: Lesson) -> None:
        self._dropped.pop(lesson.fleet, None)
        if not self.siblings.is_nobody:
            size = size_class(lesson.sample.uncached_tokens)
            if lesson.ended - self._told_at.get(size, -math.inf) < TOLD_EVERY_S:
                return
            self._told_at[size] = lesson.ended
            self.siblings.tell(_pack(lesson))
        self.speeds.observe(lesson.replica_id, lesson.fleet, lesson.sample)

    def _drop(self, lesson: Lesson) -> None:
        dropped = self._dropped.setdefault(lesson.fleet, [])
        dropped.append(lesson)
        if len(dropped) >= MOST_DROPPED:
            self._teach(min(dropped, key=self._slowness))

    def _slowness(self, lesson: Lesson) -> float:
        sample, ttft = lesson.sample, self.speeds.of(lesson.replica_id, lesson.fleet)
        return sample.service_ms / max(predicted_ms(ttft, sample), 1.0)
