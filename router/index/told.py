"""What other routers told of their load, read as of now."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from router.index.load import RECENT_HALF_LIFE_S, Load
from router.replicas import ReplicaId

FADING_S: Final = 0.1
"""What only fades is added up anew so often."""


@dataclass(frozen=True, slots=True)
class _Word:
    load: Load
    at: float


@dataclass(slots=True)
class _Words:
    """About one replica, by router. `total`: all of them at `total_at`, while nothing waits."""

    by_router: dict[str, _Word] = field(default_factory=dict)
    total: Load | None = None
    total_at: float = 0.0

    def add_up(self, now: float) -> Load:
        """As of now: as `Load.aged` and `Load.plus`, in one go. O(routers)."""
        queued, wait_ms, running, waiting, resident = 0, 0.0, 0, 0, 0
        recent_ms, mean_ms = 0.0, 0.0
        for word in self.by_router.values():
            load, age_s = word.load, max(0.0, now - word.at)
            left_ms = load.wait_ms - 1e3 * age_s
            if left_ms > 0.0:
                queued += load.queued_tokens
                wait_ms += left_ms
                waiting += load.waiting
                running += load.running
            else:
                running += load.running + load.waiting
            recent_ms += load.recent_ms * math.exp2(-age_s / RECENT_HALF_LIFE_S)
            mean_ms = max(mean_ms, load.mean_ms)
            resident += load.resident_tokens
        return Load(queued, wait_ms, running, waiting, recent_ms, mean_ms, resident)


@dataclass(slots=True)
class Told:
    """Each router's last word on each replica. Their queues have gone on since they gave it."""

    clock: Callable[[], float]
    _words: dict[ReplicaId, _Words] = field(default_factory=dict)

    def tell(self, router_id: str, replica_id: ReplicaId, load: Load, at: float) -> None:
        """The router said this at that time of `clock`."""
        words = self._words.setdefault(replica_id, _Words())
        words.by_router[router_id] = _Word(load, at)
        words.total = None

    def get(self, replica_id: ReplicaId) -> Load | None:
        """What all of them make the replica do now. None: nothing."""
        words = self._words.get(replica_id)
        if words is None:
            return None
        now = self.clock()
        if words.total is not None and now - words.total_at <= FADING_S:
            return words.total
        total = words.add_up(now)
        if not total.waiting:  # a queue gets shorter by the millisecond
            words.total, words.total_at = total, now
        return total
