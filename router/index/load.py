"""What a replica has to do, and how answers end: the figures that reservations add up to."""

import math
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

RECENT_HALF_LIFE_S = 30.0
RECENT_WINDOW_MS = RECENT_HALF_LIFE_S / math.log(2) * 1e3
"""A replica that always computes has so much `recent_ms`."""


def pairs_of(first: int, after: int) -> int:
    """What attention looks at to compute the tokens of a prompt from `first` until before `after`:
    each with each one before it."""
    return (after - first) * (after + first) // 2


class Load(Struct, frozen=True, gc=False):
    """What a replica has to do before and beside a new request.

    `queued_tokens`: uncached prompt tokens of requests without a first token yet.
    `wait_ms`: the time that they still take, by prediction. `running`: requests that decode.
    `recent_ms`: computing time booked of late, each booking halved every 30 s.
    """

    queued_tokens: int = 0
    wait_ms: float = 0.0
    running: int = 0
    waiting: int = 0
    recent_ms: float = 0.0
    mean_ms: float = 0.0
    """Computing time of one request, in the mean of those booked of late."""
    resident_tokens: int = 0
    """What requests in flight hold of the cache: distinct prompt tokens, and answers so far."""
    quiet_ms: float = 0.0
    """For how long none of one router's prompts has waited there; of no meaning in a sum."""
    queued_pairs: int = 0
    """Of `queued_tokens`: see `pairs_of`."""
    late: float = 0.0
    """So many times as long as was predicted has the prompt at the head of this router's taken."""

    @property
    def busy(self) -> float:
        """Share of its time that the replica computed prompts of late, 0 to about 1."""
        return self.recent_ms / RECENT_WINDOW_MS

    @property
    def in_flight(self) -> int:
        return self.running + self.waiting

    def aged(self, age_s: float) -> "Load":
        """What became of it when so much time has passed since somebody told of it."""
        wait_ms = max(0.0, self.wait_ms - age_s * 1e3)
        waiting = self.waiting if wait_ms else 0
        return Load(
            queued_tokens=self.queued_tokens if wait_ms else 0,
            wait_ms=wait_ms,
            running=self.in_flight - waiting,
            waiting=waiting,
            recent_ms=self.recent_ms * math.exp2(-age_s / RECENT_HALF_LIFE_S),
            mean_ms=self.mean_ms,
            resident_tokens=self.resident_tokens,
            queued_pairs=self.queued_pairs if wait_ms else 0,
        )

    def plus(self, other: "Load") -> "Load":
        """Both, on one replica: its one queue serves all."""
        return Load(
            self.queued_tokens + other.queued_tokens,
            self.wait_ms + other.wait_ms,
            self.running + other.running,
            self.waiting + other.waiting,
            self.recent_ms + other.recent_ms,
            max(self.mean_ms, other.mean_ms),
            self.resident_tokens + other.resident_tokens,
            queued_pairs=self.queued_pairs + other.queued_pairs,
            late=max(self.late, other.late),
        )


@dataclass(slots=True)
class Recent:
    """Computing time and number of bookings, both fading: halved every `RECENT_HALF_LIFE_S`."""

    cost_ms: float = 0.0
    count: float = 0.0
    at: float = 0.0

    def read_ms(self, now: float) -> float:
        return self.cost_ms * math.exp2((self.at - now) / RECENT_HALF_LIFE_S)

    @property
    def mean_ms(self) -> float:
        return self.cost_ms / self.count if self.count else 0.0

    def add(self, cost_ms: float, now: float) -> None:
        fade = math.exp2((self.at - now) / RECENT_HALF_LIFE_S)
        self.cost_ms, self.count = fade * self.cost_ms + cost_ms, fade * self.count + 1
        self.at = now


NOTHING_YET: Final = Recent()


@dataclass(slots=True)
class Answers:
    """How long and how many tokens answers are, in the mean of the last hundred or so.

    Before the first has ended: a guess, so that caches don't fill unnoticed in the meantime.
    """

    mean_ms: float = 10_000.0
    mean_tokens: float = 300.0
    _count: int = 0

    @property
    def tokens_per_ms(self) -> float:
        """Of one answer."""
        return self.mean_tokens / self.mean_ms if self.mean_ms > 0.0 else 0.0

    def ended(self, decode_ms: float, tokens: int) -> None:
        self._count = min(self._count + 1, 100)
        self.mean_ms += (decode_ms - self.mean_ms) / self._count
        self.mean_tokens += (tokens - self.mean_tokens) / self._count
