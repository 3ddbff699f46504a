"""Load that was sent and is not done yet, and the prefixes that are being computed for it.

A choice is load from the instant it is made. `Reservations` books it in the same step, and whoever
holds the reservation lets go of it when the stream ends, however it ends.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from router.blocks import BlockHash
from router.replicas import ReplicaId


@dataclass(slots=True, eq=False)
class Reservation:
    """One request's claim on one replica. `cost_ms`: prefill time that was predicted for it.

    A reply that isn't streamed shows no first token: `silent` ones count as computed when their
    predicted time has passed.
    """

    replica_id: ReplicaId
    uncached_tokens: int
    cost_ms: float
    prefix: Sequence[BlockHash]
    booked_at: float
    silent: bool = False
    work_tokens: int = 0
    running_then: int = 0


@dataclass(frozen=True, slots=True)
class Load:
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

    @property
    def busy(self) -> float:
        """Share of its time that the replica computed prompts of late, 0 to about 1."""
        return self.recent_ms / RECENT_WINDOW_MS

    @property
    def in_flight(self) -> int:
        return self.running + self.waiting

    def plus(self, other: "Load") -> "Load":
        """Both, on one replica: its one queue serves all."""
        return Load(
            self.queued_tokens + other.queued_tokens,
            self.wait_ms + other.wait_ms,
            self.running + other.running,
            self.waiting + other.waiting,
            self.recent_ms + other.recent_ms,
        )


RECENT_HALF_LIFE_S = 30.0
RECENT_WINDOW_MS = RECENT_HALF_LIFE_S / math.log(2) * 1e3
"""A replica that always computes has so much `recent_ms`."""
# Of the prefill at the head of the queue, at most this share is believed to be done: a replica
# that is slower than predicted must not look idle.
HEAD_DONE_AT_MOST = 0.9


@dataclass(slots=True)
class _Lane:
    """One replica's requests. `pending` is in order of booking: engines serve first come first."""

    pending: dict[int, Reservation] = field(default_factory=dict)
    running: dict[int, Reservation] = field(default_factory=dict)
    head_since: float = 0.0


@dataclass(slots=True)
class _Faded:
    """A sum whose parts fade: halved every `RECENT_HALF_LIFE_S`."""

    value: float = 0.0
    at: float = 0.0

    def read(self, now: float) -> float:
        return self.value * math.exp2((self.at - now) / RECENT_HALF_LIFE_S)

    def add(self, amount: float, now: float) -> None:
        self.value, self.at = self.read(now) + amount, now


@dataclass(slots=True)
class Reservations:
    """All requests in flight, by replica and by the first block of their prefix."""

    clock: Callable[[], float]
    others: Mapping[ReplicaId, Load] = field(default_factory=dict)
    """What other routers make replicas do. Whoever learns it puts a new mapping here."""
    _lanes: dict[ReplicaId, _Lane] = field(default_factory=dict)
    _recent: dict[ReplicaId, _Faded] = field(default_factory=dict)
    _by_root: dict[BlockHash, dict[int, Reservation]] = field(default_factory=dict)

    def take(self, reservation: Reservation) -> None:
        """Book a request. `work_tokens` and `running_then` record what it found there."""
        load = self.load(reservation.replica_id)
        reservation.work_tokens = load.queued_tokens + reservation.uncached_tokens
        reservation.running_then = load.running
        recent = self._recent.setdefault(reservation.replica_id, _Faded())
        recent.add(reservation.cost_ms, reservation.booked_at)
        lane = self._lanes.setdefault(reservation.replica_id, _Lane())
        if not lane.pending:
            lane.head_since = reservation.booked_at
        lane.pending[id(reservation)] = reservation
        if reservation.prefix:
            self._by_root.setdefault(reservation.prefix[0], {})[id(reservation)] = reservation

    def computed(self, reservation: Reservation) -> None:
        """Its first token came: it no longer queues, it decodes. Idempotent."""
        lane = self._lanes.get(reservation.replica_id)
        if lane is None or id(reservation) not in lane.pending:
            return
        self._leave_queue(lane, reservation)
        lane.running[id(reservation)] = reservation

    def release(self, reservation: Reservation) -> None:
        """It is over. Idempotent."""
        lane = self._lanes.get(reservation.replica_id)
        if lane is None:
            return
        if id(reservation) in lane.pending:
            self._leave_queue(lane, reservation)
        lane.running.pop(id(reservation), None)
        if not lane.pending and not lane.running:
            del self._lanes[reservation.replica_id]
        self._forget_prefix(reservation)

    def load(self, replica_id: ReplicaId) -> Load:
        """What the replica has to do now, for this router and others."""
        own, other = self.own_load(replica_id), self.others.get(replica_id)
        return own if other is None else own.plus(other)

    def own_loads(self) -> dict[ReplicaId, Load]:
        """What each replica has to do for this router; those with nothing may lack."""
        return {i: self.own_load(i) for i in {**self._lanes, **self._recent}}

    def own_load(self, replica_id: ReplicaId) -> Load:
        """The same for this router. Linear in the requests without a first token."""
        lane, now = self._lanes.get(replica_id), self.clock()
        recent = self._recent.get(replica_id)
        recent_ms = recent.read(now) if recent is not None else 0.0
        if lane is None:
            return Load(recent_ms=recent_ms)
        self._settle_silent(lane, now)
        if not lane.pending:
            return Load(running=len(lane.running), recent_ms=recent_ms)
        waiting = lane.pending.values()
        head = next(iter(waiting))
        done_ms = min((now - lane.head_since) * 1e3, HEAD_DONE_AT_MOST * head.cost_ms)
        return Load(
            queued_tokens=sum(r.uncached_tokens for r in waiting),
            wait_ms=max(0.0, sum(r.cost_ms for r in waiting) - done_ms),
            running=len(lane.running),
            waiting=len(waiting),
            recent_ms=recent_ms,
        )

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of `prefix` that requests in flight hold or are computing, by replica."""
        if not prefix:
            return {}
        best: dict[ReplicaId, int] = {}
        for reservation in self._by_root.get(prefix[0], {}).values():
            blocks = common_blocks(prefix, reservation.prefix)
            if blocks > best.get(reservation.replica_id, 0):
                best[reservation.replica_id] = blocks
        return best

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left. Claims on it end as they would have."""
        self._recent.pop(replica_id, None)

    def in_flight(self, replica_id: ReplicaId) -> int:
        lane = self._lanes.get(replica_id)
        return len(lane.pending) + len(lane.running) if lane is not None else 0

    def _leave_queue(self, lane: _Lane, reservation: Reservation) -> None:
        was_head = next(iter(lane.pending)) == id(reservation)
        del lane.pending[id(reservation)]
        if was_head:
            lane.head_since = self.clock()

    def _settle_silent(self, lane: _Lane, now: float) -> None:
        for reservation in [r for r in lane.pending.values() if r.silent]:
            if (now - lane.head_since) * 1e3 >= reservation.cost_ms:
                self._leave_queue(lane, reservation)
                lane.running[id(reservation)] = reservation

    def _forget_prefix(self, reservation: Reservation) -> None:
        if not reservation.prefix:
            return
        siblings = self._by_root.get(reservation.prefix[0], {})
        siblings.pop(id(reservation), None)
        if not siblings:
            self._by_root.pop(reservation.prefix[0], None)


def common_blocks(one: Sequence[BlockHash], other: Sequence[BlockHash]) -> int:
    """Leading blocks that two prefixes share. Each hash names all before it, so bisection does."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
