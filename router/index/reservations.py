"""Load that was sent and is not done yet, and the prefixes that are being computed for it.

A choice is load from the instant it is made. `Reservations` books it in the same step, and whoever
holds the reservation lets go of it when the stream ends, however it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.blocks import BlockHash
from router.index.claims import SHORT_MS, Computed, Price, Reservation
from router.index.lane import Lane
from router.index.load import NOTHING_YET, Answers, Load, Recent
from router.index.residency import common_blocks
from router.index.siblings import NoOthers, NoSiblings, OthersLoads, Siblings
from router.replicas import ReplicaId

__all__ = [
    "SHORT_MS",
    "Computed",
    "NoOthers",
    "NoSiblings",
    "OthersLoads",
    "Reservation",
    "Reservations",
    "Siblings",
]

FADING_S: Final = 0.1
"""What only fades is read anew so often: of a half-life of 30 s that is a quarter of a percent."""


@dataclass(slots=True)
class Reservations:
    """All requests in flight, by replica and by the first block of their prefix."""

    clock: Callable[[], float]
    others: OthersLoads = field(default_factory=NoOthers)
    """Whoever learns it puts something new here."""
    siblings: Siblings = field(default_factory=NoSiblings)
    on_change: Callable[[ReplicaId], None] = lambda replica_id: None
    """What we make the replica do is not what it was."""
    _lanes: dict[ReplicaId, Lane] = field(default_factory=dict)
    _recent: dict[ReplicaId, Recent] = field(default_factory=dict)
    _left: set[ReplicaId] = field(default_factory=set)
    """Replicas that left while they had requests of ours."""
    _by_root: dict[BlockHash, dict[int, Reservation]] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    _open: dict[ReplicaId, None] = field(default_factory=dict)
    """Where a first token came of late, and another one of the same step may follow."""

    def take(self, reservation: Reservation) -> None:
        """Book a request. `running_then` records what it found there.

        Behind another router's prompts it is no lesson: their first tokens, by which its own time
        could be told from theirs, aren't seen here.
        """
        self._left.discard(reservation.replica_id)
        replica_id = reservation.replica_id
        if (recent := self._recent.get(replica_id)) is None:
            recent = self._recent[replica_id] = Recent()
        recent.add(reservation.cost_ms + reservation.reusing_ms, reservation.booked_at)
        if (lane := self._lanes.get(replica_id)) is None:
            lane = self._lanes[replica_id] = Lane()
        reservation.running_then = len(lane.running)
        if not reservation.silent:
            self._note_others(reservation)
        lane.join(reservation)
        if reservation.prefix:
            self._by_root.setdefault(reservation.prefix[0], {})[id(reservation)] = reservation
        self.siblings.begin(reservation)
        self._tell(replica_id, at_once=not reservation.is_short)

    def _note_others(self, reservation: Reservation) -> None:
        replica_id = reservation.replica_id
        for load in (self.others.get(replica_id), self.siblings.seen(replica_id)):
            if load is not None:
                reservation.running_then += load.running
                reservation.is_lesson &= not load.waiting

    def settle(self, replica_id: ReplicaId) -> None:
        """What was booked there and could wait is done now, rather than at the next choice."""
        if (lane := self._lanes.get(replica_id)) is not None:
            lane.residency.settle()

    def computed(self, reservation: Reservation) -> Computed | None:
        """Its first token came: it no longer queues, it decodes. Idempotent.

        Returns the batch before, if nobody has asked for what is `over` since: engines compute
        several prompts in one step, and then their first tokens come together.
        """
        lane = self._lanes.get(reservation.replica_id)
        if lane is None or id(reservation) not in lane.pending:
            return None
        batch = lane.first_token(reservation, self.clock())
        self._open[reservation.replica_id] = None
        self._tell(reservation.replica_id)
        return batch

    def over(self) -> list[Computed]:
        """Batches that ended since they were asked for last. O(those that have not, or now)."""
        if not self._open:
            return []
        now, found = self.clock(), []
        for replica_id in list(self._open):
            lane = self._lanes.get(replica_id)
            if lane is not None and (batch := lane.over(now)) is not None:
                found.append(batch)
            if lane is None or lane.batch is None:
                del self._open[replica_id]
        return found

    def reprice(self, replica_id: ReplicaId, price: Price) -> None:
        """What waits there takes so long, as far as is known now."""
        lane = self._lanes.get(replica_id)
        if lane is not None and lane.pending:
            lane.reprice(price)
            self._tell(replica_id)

    def release(self, reservation: Reservation, answer_tokens: int | None = None) -> None:
        """It is over. Idempotent. `answer_tokens`: as many were generated, if that is known."""
        lane = self._lanes.get(reservation.replica_id)
        if lane is None or not lane.has(reservation):
            return
        now = self.clock()
        lane.leave(reservation, now)
        if answer_tokens and reservation.computed_at is not None:
            self.answers.ended((now - reservation.computed_at) * 1e3, answer_tokens)
        self._forget_prefix(reservation)
        self._tell(reservation.replica_id)
        if reservation.replica_id in self._left:
            self.forget(reservation.replica_id)

    def load(self, replica_id: ReplicaId) -> Load:
        """What the replica has to do now, for this router and others."""
        return self.loads((replica_id,))[0]

    def loads(self, replica_ids: Sequence[ReplicaId]) -> list[Load]:
        """What each has to do now. All of a fleet's are read for every choice."""
        now, lanes, found, told_of = self.clock(), self._lanes, [], self.others.get
        for replica_id in replica_ids:
            lane = lanes.get(replica_id)
            load = lane.known if lane is not None else None
            if lane is None or load is None or now - lane.known_at > FADING_S:
                load = self._read(replica_id, lane, now)
            if (told := told_of(replica_id)) is not None:
                load = load.plus(told)
            found.append(load)
        return self.siblings.plus(replica_ids, found)

    def own_loads(self) -> dict[ReplicaId, Load]:
        """What each replica has to do for this router; those with nothing may lack."""
        return {i: self.own_load(i) for i in {**self._lanes, **self._recent}}

    def own_load(self, replica_id: ReplicaId) -> Load:
        """The same for this router."""
        return self._read(replica_id, self._lanes.get(replica_id), self.clock())

    def _read(self, replica_id: ReplicaId, lane: Lane | None, now: float) -> Load:
        recent = self._recent.get(replica_id, NOTHING_YET)
        recent_ms, mean_ms = recent.read_ms(now), recent.mean_ms
        if lane is None:
            return Load(recent_ms=recent_ms, mean_ms=mean_ms)
        queue, running, late = lane.queue(now), len(lane.running), 0.0
        if queue.late > 1.0 and self.others.quiet(replica_id, lane.step_began, now):
            late = queue.late  # and not for what others have before it
        resident_tokens = lane.resident(self.answers, now)
        quiet_ms = 0.0 if lane.pending else (now - lane.quiet_since) * 1e3
        load = Load(
            queue.tokens, queue.wait_ms, running, len(lane.pending), recent_ms, mean_ms,
            resident_tokens, quiet_ms, queue.pairs, late,
        )  # fmt: skip
        if not lane.pending:  # a queue gets shorter by the millisecond
            lane.known, lane.known_at = load, now
        return load

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
        if lane is not None:
            lane.known = None
            if lane.pending or lane.running:
                self._left.add(replica_id)
                return
            del self._lanes[replica_id]
        self._left.discard(replica_id)
        self.siblings.forget(replica_id)

    @property
    def is_waiting(self) -> bool:
        """Does a prompt of ours wait for its first token anywhere? O(replicas)."""
        return any(lane.pending for lane in self._lanes.values())

    def in_flight(self, replica_id: ReplicaId) -> int:
        lane = self._lanes.get(replica_id)
        return len(lane.pending) + len(lane.running) if lane is not None else 0

    def _tell(self, replica_id: ReplicaId, *, at_once: bool = False) -> None:
        self.siblings.write(replica_id, self.own_load, at_once=at_once)
        self.on_change(replica_id)

    def _forget_prefix(self, reservation: Reservation) -> None:
        self.siblings.end(reservation)
        if not reservation.prefix:
            return
        siblings = self._by_root.get(reservation.prefix[0], {})
        siblings.pop(id(reservation), None)
        if not siblings:
            self._by_root.pop(reservation.prefix[0], None)
