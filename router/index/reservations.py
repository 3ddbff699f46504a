"""Load that was sent and is not done yet, and the prefixes that are being computed for it.

A choice is load from the instant it is made. `Reservations` books it in the same step, and whoever
holds the reservation lets go of it when the stream ends, however it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.blocks import BlockHash
from router.index.load import NOTHING_YET, Answers, Load, Recent
from router.index.residency import Residency, common_blocks
from router.replicas import ReplicaId


@dataclass(slots=True, eq=False)
class Reservation:
    """One request's claim on one replica. `cost_ms`: prefill time that was predicted for it.

    A reply that isn't streamed shows no first token: `silent` ones count as computed when their
    predicted time has passed. `is_lesson`: whether its time says something about speed.
    """

    replica_id: ReplicaId
    uncached_tokens: int
    cost_ms: float
    prefix: Sequence[BlockHash]
    booked_at: float
    silent: bool = False
    prompt_tokens: int = 0
    block_size: int = 0
    is_lesson: bool = False
    reusing_ms: float = 0.0
    """What its hit takes: the replica is busy with it, but others need not wait for it."""
    running_then: int = 0
    computed_at: float | None = None


# Of the prefill at the head of the queue, at most this share is believed to be done: a replica
# that is slower than predicted must not look idle.
HEAD_DONE_AT_MOST = 0.9


SAME_STEP = 0.1
"""First tokens that follow within a tenth of the time that a step took are of the same step."""


@dataclass(slots=True)
class Computed:
    """Prompts whose first tokens came together, and the time since nobody was before them.

    `hit_tokens`: the longest of their hits, for a step looks them up beside each other.
    """

    began: float
    ended: float
    uncached_tokens: int
    hit_tokens: int
    running: int
    is_lesson: bool


@dataclass(slots=True)
class _Lane:
    """One replica's requests. `pending` is in order of booking: engines serve first come first."""

    pending: dict[int, Reservation] = field(default_factory=dict)
    running: dict[int, Reservation] = field(default_factory=dict)
    head_since: float = 0.0
    residency: Residency = field(default_factory=Residency)
    batch: Computed | None = None


class OthersLoads(Protocol):
    """What other routers make replicas do."""

    def get(self, replica_id: ReplicaId, /) -> Load | None:
        """All of them together, as of now. None: nothing."""


class Siblings(Protocol):
    """Other processes of this host that send to the same replicas."""

    def get(self, replica_id: ReplicaId) -> Load | None:
        """What they make the replica do now."""

    def write(self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load]) -> None:
        """What we do has changed to what `read` gives."""

    def begin(self, reservation: Reservation) -> None:
        """We sent it."""

    def end(self, reservation: Reservation) -> None:
        """It is over. Not more than once for each that began."""

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of `prefix` (not empty) that theirs in flight hold or compute."""


class NoSiblings:
    """One process."""

    def get(self, replica_id: ReplicaId) -> Load | None:
        return None

    def write(self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load]) -> None:
        """Nobody wants to know."""

    def begin(self, reservation: Reservation) -> None:
        """Nobody wants to know."""

    def end(self, reservation: Reservation) -> None:
        """Nobody wants to know."""

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        return {}


@dataclass(slots=True)
class Reservations:
    """All requests in flight, by replica and by the first block of their prefix."""

    clock: Callable[[], float]
    others: OthersLoads = field(default_factory=dict[ReplicaId, Load])
    """Whoever learns it puts something new here."""
    siblings: Siblings = field(default_factory=NoSiblings)
    _lanes: dict[ReplicaId, _Lane] = field(default_factory=dict)
    _recent: dict[ReplicaId, Recent] = field(default_factory=dict)
    _by_root: dict[BlockHash, dict[int, Reservation]] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)

    def take(self, reservation: Reservation) -> None:
        """Book a request. `running_then` records what it found there.

        Behind another router's prompts it is no lesson: their first tokens, by which its own time
        could be told from theirs, aren't seen here.
        """
        recent = self._recent.setdefault(reservation.replica_id, Recent())
        recent.add(reservation.cost_ms + reservation.reusing_ms, reservation.booked_at)
        lane = self._lanes.setdefault(reservation.replica_id, _Lane())
        if not lane.pending:
            lane.head_since = reservation.booked_at
        others = self._by_others(reservation.replica_id)
        reservation.running_then = len(lane.running) + sum(load.running for load in others)
        reservation.is_lesson &= not any(load.waiting for load in others)
        lane.pending[id(reservation)] = reservation
        lane.residency.add(reservation.prefix, reservation.block_size, reservation.prompt_tokens)
        if reservation.prefix:
            self._by_root.setdefault(reservation.prefix[0], {})[id(reservation)] = reservation
        self.siblings.begin(reservation)
        self._tell(reservation.replica_id)

    def computed(self, reservation: Reservation) -> Computed | None:
        """Its first token came: it no longer queues, it decodes. Idempotent.

        Returns the batch before, if this one ended it: engines compute several prompts in one
        step, and then their first tokens come together.
        """
        lane = self._lanes.get(reservation.replica_id)
        if lane is None or id(reservation) not in lane.pending:
            return None
        now, since = self.clock(), max(lane.head_since, reservation.booked_at)
        self._leave_queue(lane, reservation)
        lane.running[id(reservation)] = reservation
        self._tell(reservation.replica_id)
        reservation.computed_at = now
        batch, hit_tokens = lane.batch, reservation.prompt_tokens - reservation.uncached_tokens
        if batch is not None and now - batch.ended <= SAME_STEP * (batch.ended - batch.began):
            batch.uncached_tokens += reservation.uncached_tokens
            batch.hit_tokens = max(batch.hit_tokens, hit_tokens)
            batch.is_lesson &= reservation.is_lesson
            return None
        lane.batch = Computed(
            since, now, reservation.uncached_tokens, hit_tokens, reservation.running_then,
            reservation.is_lesson,
        )  # fmt: skip
        return batch

    def release(self, reservation: Reservation, answer_tokens: int | None = None) -> None:
        """It is over. Idempotent. `answer_tokens`: as many were generated, if that is known."""
        lane = self._lanes.get(reservation.replica_id)
        if lane is None or not (id(reservation) in lane.pending or id(reservation) in lane.running):
            return
        lane.residency.drop(reservation.prefix, reservation.block_size, reservation.prompt_tokens)
        if answer_tokens and reservation.computed_at is not None:
            self.answers.ended((self.clock() - reservation.computed_at) * 1e3, answer_tokens)
        if id(reservation) in lane.pending:
            self._leave_queue(lane, reservation)
        lane.running.pop(id(reservation), None)
        self._forget_prefix(reservation)
        self._tell(reservation.replica_id)

    def load(self, replica_id: ReplicaId) -> Load:
        """What the replica has to do now, for this router and others."""
        load = self.own_load(replica_id)
        for other in self._by_others(replica_id):
            load = load.plus(other)
        return load

    def _by_others(self, replica_id: ReplicaId) -> list[Load]:
        both = self.others.get(replica_id), self.siblings.get(replica_id)
        return [load for load in both if load is not None]

    def own_loads(self) -> dict[ReplicaId, Load]:
        """What each replica has to do for this router; those with nothing may lack."""
        return {i: self.own_load(i) for i in {**self._lanes, **self._recent}}

    def own_load(self, replica_id: ReplicaId) -> Load:
        """The same for this router. Linear in the requests without a first token."""
        lane, now = self._lanes.get(replica_id), self.clock()
        recent = self._recent.get(replica_id, NOTHING_YET)
        recent_ms, mean_ms = recent.read_ms(now), recent.mean_ms
        if lane is None:
            return Load(recent_ms=recent_ms, mean_ms=mean_ms)
        self._settle_silent(lane, now)
        if not lane.pending:
            return Load(
                running=len(lane.running),
                recent_ms=recent_ms,
                mean_ms=mean_ms,
                resident_tokens=self._resident(lane),
            )
        waiting = lane.pending.values()
        head = next(iter(waiting))
        done_ms = min((now - lane.head_since) * 1e3, HEAD_DONE_AT_MOST * head.cost_ms)
        return Load(
            queued_tokens=sum([r.uncached_tokens for r in waiting]),
            wait_ms=max(0.0, sum([r.cost_ms for r in waiting]) - done_ms),
            running=len(lane.running),
            waiting=len(waiting),
            recent_ms=recent_ms,
            mean_ms=mean_ms,
            resident_tokens=self._resident(lane),
        )

    def footprint(
        self,
        replica_id: ReplicaId,
        prefix: Sequence[BlockHash],
        block_size: int,
        prompt_tokens: int,
    ) -> int:
        """Tokens of the replica's cache that the prompt would hold beyond what others hold."""
        lane = self._lanes.get(replica_id)
        if lane is None:
            return prompt_tokens
        return lane.residency.footprint(prefix, block_size, prompt_tokens)

    def _resident(self, lane: _Lane) -> int:
        return lane.residency.tokens + round(self.answers.mean_tokens / 2 * len(lane.running))

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of `prefix` that requests in flight hold or are computing, by replica."""
        if not prefix:
            return {}
        best = self.siblings.expected(prefix)
        blocks = len(prefix)
        for reservation in self._by_root.get(prefix[0], {}).values():
            other = reservation.prefix
            known = best.get(reservation.replica_id, 0)
            # most share no more than one before them did: one look tells
            if known < blocks and known < len(other) and prefix[known] == other[known]:
                best[reservation.replica_id] = common_blocks(prefix, other)
        return best

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left. Claims on it end as they would have."""
        self._recent.pop(replica_id, None)
        lane = self._lanes.get(replica_id)
        if lane is not None and not lane.pending and not lane.running:
            del self._lanes[replica_id]

    def in_flight(self, replica_id: ReplicaId) -> int:
        lane = self._lanes.get(replica_id)
        return len(lane.pending) + len(lane.running) if lane is not None else 0

    def _tell(self, replica_id: ReplicaId) -> None:
        self.siblings.write(replica_id, self.own_load)

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
        self.siblings.end(reservation)
        if not reservation.prefix:
            return
        siblings = self._by_root.get(reservation.prefix[0], {})
        siblings.pop(id(reservation), None)
        if not siblings:
            self._by_root.pop(reservation.prefix[0], None)
