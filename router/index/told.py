"""What other routers told of their load, read as of now."""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
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
    number: int


REMEMBERED_SPANS: Final = 16


@dataclass(slots=True)
class _Quiet:
    """When one router had no prompt that waited at one replica. `is_open`: it has none now."""

    spans: deque[tuple[float, float]]
    is_open: bool = True

    def note(self, start: float, end: float) -> None:
        first, last = self.spans[-1]
        if start <= last:
            self.spans[-1] = first, max(last, end)
        else:
            self.spans.append((start, end))

    def covers(self, began: float, ended: float) -> bool:
        if self.is_open and self.spans[-1][0] <= began:
            return True
        return any(start <= began and ended <= end for start, end in self.spans)


@dataclass(slots=True)
class _Words:
    """About one replica, by router. `total`: all of them at `total_at`, while nothing waits."""

    by_router: dict[str, _Word] = field(default_factory=dict)
    quiet: dict[str, _Quiet] = field(default_factory=dict)
    total: Load | None = None
    total_at: float = 0.0

    def drop(self, router_id: str) -> None:
        if self.by_router.pop(router_id, None) is not None:
            self.total = None
        self.quiet.pop(router_id, None)

    def add_up(self, now: float) -> Load:
        """As of now: as `Load.aged` and `Load.plus`, in one go. O(routers)."""
        queued, wait_ms, running, waiting, resident, pairs = 0, 0.0, 0, 0, 0, 0
        recent_ms, mean_ms = 0.0, 0.0
        for word in self.by_router.values():
            load, age_s = word.load, max(0.0, now - word.at)
            left_ms = load.wait_ms - 1e3 * age_s
            if left_ms > 0.0:
                queued += load.queued_tokens
                pairs += load.queued_pairs
                wait_ms += left_ms
                waiting += load.waiting
                running += load.running
            else:
                running += load.running + load.waiting
            recent_ms += load.recent_ms * math.exp2(-age_s / RECENT_HALF_LIFE_S)
            mean_ms = max(mean_ms, load.mean_ms)
            resident += load.resident_tokens
        return Load(
            queued, wait_ms, running, waiting, recent_ms, mean_ms, resident, queued_pairs=pairs
        )


@dataclass(slots=True)
class Told:
    """Each router's last word on each replica. Their queues have gone on since they gave it.

    `late_s`: what has not been heard after so long has not happened. `vague_s`: a word is about a
    time that is up to so long before the one that it is said to be about. `unseen_s`: so long after
    something was sent it is heard of, in the mean, while prompts wait. Words of one router count
    up: one that was overtaken by a newer one says nothing.
    """

    clock: Callable[[], float]
    late_s: float = 0.0
    vague_s: float = 0.0
    unseen_s: float = 0.0
    _words: dict[ReplicaId, _Words] = field(default_factory=dict)
    _deaf_from: float = math.inf
    _deaf_until: float = -math.inf

    def tell(
        self,
        router_id: str,
        replica_id: ReplicaId,
        load: Load,
        at: float,
        number: int = 0,
        news_s: float | None = None,
    ) -> None:
        """The router said this at that time of `clock`. `news_s`: it says so of each change, after
        so long at most: until this one it was as it had said before."""
        vague_s = self.vague_s if news_s is None else news_s
        words = self._words.setdefault(replica_id, _Words())
        before = words.by_router.get(router_id)
        if before is not None and before.number > number:
            return
        words.by_router[router_id], words.total = _Word(load, at, number), None
        quiet = words.quiet.get(router_id)
        if quiet is None:  # before the first word there was nothing to say
            earlier = -math.inf, at - vague_s
            quiet = words.quiet[router_id] = _Quiet(deque([earlier], REMEMBERED_SPANS))
        if quiet.is_open and load.waiting and news_s is not None:
            quiet.note(quiet.spans[-1][0], at - news_s)
        quiet.is_open = not load.waiting
        if quiet.is_open:
            quiet.note(at - load.quiet_ms / 1e3, at - vague_s)

    def tell_all(
        self, router_id: str, loads: Mapping[ReplicaId, Load], at: float, number: int = 0
    ) -> None:
        """The same of every replica: of those that are not named there is nothing more to say."""
        for replica_id, words in self._words.items():
            word = words.by_router.get(router_id)
            if replica_id not in loads and word is not None and word.number <= number:
                words.drop(router_id)
        for replica_id, load in loads.items():
            self.tell(router_id, replica_id, load, at, number)

    def go_deaf(self, since: float) -> None:
        """There are others, and nothing has been heard since then: it can't be said that they kept
        quiet until `hear_again`."""
        self._deaf_from = min(self._deaf_from, since)

    def hear_again(self) -> None:
        if self._deaf_from < math.inf:
            self._deaf_from, self._deaf_until = math.inf, self.clock()

    def keep(self, router_ids: Collection[str]) -> None:
        """Other routers are gone."""
        for words in self._words.values():
            for router_id in [one for one in words.by_router if one not in router_ids]:
                words.drop(router_id)

    def quiet(self, replica_id: ReplicaId, began: float, ended: float) -> bool | None:
        """See `OthersLoads`. O(routers)."""
        if ended > self._deaf_from or began < self._deaf_until:
            return False
        if ended > self.clock() - self.late_s:
            return None
        words = self._words.get(replica_id)
        return words is None or all(one.covers(began, ended) for one in words.quiet.values())

    def get(self, replica_id: ReplicaId) -> Load | None:
        """What all of them make the replica do now. None: nothing."""
        words = self._words.get(replica_id)
        if words is None or not words.by_router:
            return None
        now = self.clock()
        if words.total is not None and now - words.total_at <= FADING_S:
            return words.total
        total = words.add_up(now)
        if not total.waiting:  # a queue gets shorter by the millisecond
            words.total, words.total_at = total, now
        return total
