"""From a prompt's blocks to a claim on a replica: match → rank → reserve, with nothing in between.

All of it is synchronous, so no other request can come between reading the loads and adding this
one to them. The gateway's planner and the simulator run this same code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from router.blocks import BlockHash
from router.index.answers import Known, Matcher
from router.index.load import RECENT_WINDOW_MS, Load
from router.index.moved import Moved
from router.index.reservations import SHORT_MS, Reservation, Reservations
from router.index.tiers import Loads
from router.replicas import ReplicaId
from router.routing.asked import NO_PREFIX as NO_PREFIX
from router.routing.asked import Ask as Ask
from router.routing.asked import Contender as Contender
from router.routing.asked import Prefix as Prefix
from router.routing.asked import ring_key
from router.routing.cost import BUSIEST
from router.routing.decision import HOMELESS, Decision, Reason
from router.routing.history import History
from router.routing.hits import NO_HIT, Hit, hits
from router.routing.learning import Learner
from router.routing.policies import Policy
from router.routing.query import Candidate, RouteQuery
from router.routing.ramp import Ramp
from router.routing.ring import Ring
from router.routing.room import Room
from router.routing.speeds import LATE, Speeds
from router.routing.ttft import Ttft


def no_loads(prefix: Sequence[BlockHash], matched: Mapping[ReplicaId, int]) -> Loads:
    """Engines have no slower tiers that count."""
    return {}


class Choice(Struct, frozen=True):
    """A decision and all that it was made from. Nothing is booked yet."""

    query: RouteQuery
    decision: Decision
    candidates: Mapping[ReplicaId, Candidate]
    contenders: Mapping[ReplicaId, Contender]
    ask: Ask

    def blind(self) -> "Choice":
        """The same, made without knowing what anybody holds."""
        return replace(self, decision=replace(self.decision, reason=Reason.UNKNOWN))

    def kept_by(self, owner: ReplicaId | None) -> "Choice":
        """Nobody else can answer what goes on from an answer that `owner` keeps. If it is away,
        whoever is asked says that it knows of none."""
        if owner is None or owner not in self.candidates:
            return self
        return replace(self, decision=replace(self.decision, replicas=(owner,), reason=Reason.KEPT))


class Claim(Struct, eq=False):
    """One request's hold on one replica, from the choice to the end of the reply."""

    choice: Choice
    reservation: Reservation
    _chooser: "Chooser"

    @property
    def replica_id(self) -> ReplicaId:
        return self.reservation.replica_id

    def sent(self) -> None:
        """The request is on its way: time for what the choice left for later."""
        self._chooser.reservations.settle(self.reservation.replica_id)

    def first_token(self) -> float:
        """The prompt is computed: it decodes from now on. Returns the TTFT in ms.

        A prompt of unknown length teaches nothing about speed, nor does one that may have waited
        for memory.
        """
        chooser, booked = self._chooser, self.reservation
        ttft_ms = (chooser.clock() - booked.booked_at) * 1e3
        if (batch := chooser.reservations.computed(booked)) is not None:
            chooser.learner.learn(batch)
        return ttft_ms

    def release(self, answer_tokens: int | None = None) -> None:
        """It is over, however it ended. Idempotent. `answer_tokens`: where usage told them."""
        self._chooser.reservations.release(self.reservation, answer_tokens)


@dataclass(slots=True)
class Chooser:
    """What the router knows, and the policy that reads it."""

    index: Matcher
    """Asked where nothing was asked before."""
    reservations: Reservations
    speeds: Speeds
    policy: Policy
    clock: Callable[[], float]
    history: History = field(default_factory=History)
    beyond: Callable[[Sequence[BlockHash], Mapping[ReplicaId, int]], Loads] = no_loads
    """What slower tiers add to a match; see `TieredIndex.beyond`."""
    cache_tokens: dict[ReplicaId, int] = field(default_factory=dict)
    """How large each replica's cache is, where it has said so."""
    moved: Moved = field(default_factory=Moved)
    ramp: Ramp = field(default_factory=Ramp)
    room: Room = field(default_factory=Room)
    _ring: Ring = field(default_factory=Ring)
    learner: Learner = field(init=False)

    def __post_init__(self) -> None:
        self.learner = Learner(self.reservations, self.speeds)

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left. What the index knows of it is the index's own to forget."""
        self.speeds.forget(replica_id)
        self.reservations.forget(replica_id)
        self.history.forget(replica_id)
        self.cache_tokens.pop(replica_id, None)
        self.ramp.forget(replica_id)
        self.room.forget(replica_id)
        self.learner.forget(replica_id)

    def consider(
        self, ask: Ask, contenders: Sequence[Contender], known: Known | None = None
    ) -> Choice:
        """Where this would go, and why. No side effect but a policy's own turn.

        `known`: what an index says, or has said if it had to be waited for.
        """
        self.learner.listen()
        candidates = self._candidates(ask, contenders, known)
        moved_to = None if ask.session is None else self.moved.home(ask.session, self.clock())
        key = ring_key(ask, contenders, candidates)
        query = RouteQuery(ask.prompt_tokens, key, moved_to, self.reservations.others.unseen_s)
        return Choice(
            query=query,
            decision=self.rank(query, candidates),
            candidates={c.replica_id: c for c in candidates},
            contenders={c.replica_id: c for c in contenders},
            ask=ask,
        )

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate]) -> Decision:
        """The policy's order; those that are too new for this prompt come last."""
        if self.ramp.is_idle:
            return self.policy.rank(query, candidates)
        admitted = self.ramp.admitted(query, candidates, self.clock())
        decision = self.policy.rank(query, admitted)
        others = {c.replica_id for c in candidates} - {c.replica_id for c in admitted}
        return replace(decision, replicas=(*decision.replicas, *sorted(others)))

    def claim(self, choice: Choice, replica_id: ReplicaId, *, silent: bool = False) -> Claim:
        """Book the request there. `silent`: its reply will show no first token."""
        candidate, contender = choice.candidates[replica_id], choice.contenders[replica_id]
        prompt_tokens = choice.query.prompt_tokens
        uncached = max(prompt_tokens - candidate.hit_tokens, min(1, prompt_tokens))
        prefix, ttft = contender.prefix, candidate.ttft
        is_lesson = prompt_tokens > 0 and candidate.full <= BUSIEST and not silent
        reusing_ms = ttft.reusing_ms(prompt_tokens - uncached)
        computing_ms = ttft.computing_ms(uncached, prompt_tokens - uncached)
        is_held = prompt_tokens > 0 and candidate.hit_tokens <= candidate.matched_tokens
        reservation = Reservation(
            replica_id, uncached, computing_ms, prefix.hashes, self.clock(), silent,
            prompt_tokens, prefix.block_size, is_lesson, reusing_ms,
            ttft.step_ms(candidate.running) + reusing_ms, ttft.host_ms,
            is_short=is_held and computing_ms < SHORT_MS,
        )  # fmt: skip
        self.reservations.take(reservation)
        self.room.take(replica_id, uncached + round(self.reservations.answers.mean_tokens))
        self.room.ask(prompt_tokens, max([c.hit_tokens for c in choice.candidates.values()]))
        self.learner.sent(replica_id, contender.fleet, contender.distance_ms)
        self._note_move(choice, replica_id, reservation.booked_at)
        if self.policy.uses_history:
            self.history.routed(replica_id, contender.prefix.hashes)
        return Claim(choice, reservation, self)

    def _note_move(self, choice: Choice, replica_id: ReplicaId, now: float) -> None:
        if (session := choice.ask.session) is None or choice.decision.reason in HOMELESS:
            return
        if replica_id != self._ring.order(session, choice.candidates, choice.query.moved_to)[0]:
            self.moved.note(session, replica_id, now)

    def _candidates(
        self, ask: Ask, contenders: Sequence[Contender], known: Known | None
    ) -> list[Candidate]:
        # before what is coming: another process may choose in between, and whoever saw its load
        # without its prefix would flee from what it should wait for
        loads = self.reservations.loads([contender.replica_id for contender in contenders])
        speed_of, size_of = self.speeds.of, self.cache_tokens.get
        evicted = self.room.evicted
        hits_of: dict[int, dict[ReplicaId, Hit]] = {}
        candidates = []
        # As plain as it is because it is on every request's path, for every replica.
        for contender, load in zip(contenders, loads, strict=True):
            prefix, replica_id = contender.prefix, contender.replica_id
            found = hits_of.get(id(prefix))
            if found is None:
                found = hits_of[id(prefix)] = self._hits(prefix, ask.prompt_tokens, known)
            hit = found.get(replica_id, NO_HIT)
            ttft = speed_of(replica_id, contender.fleet)
            wait_ms, running, size = load.wait_ms, load.running, size_of(replica_id)
            if load.late > LATE:
                usual, ttft = ttft, speed_of(replica_id, contender.fleet, load.late)
                wait_ms *= ttft.ms_per_token / usual.ms_per_token
            if wait_ms:
                wait_ms = min(wait_ms, _most_wait_ms(ttft, load))
            new_tokens = ask.prompt_tokens - hit.coming_tokens
            full, memory_ms, memory_wait_ms = self._memory(load, new_tokens, size)
            candidates.append(
                Candidate(
                    replica_id, ttft, hit.held_tokens, hit.tokens, wait_ms, load.queued_tokens,
                    running, running + load.waiting, load.recent_ms / RECENT_WINDOW_MS,
                    load.mean_ms, full, memory_ms, memory_wait_ms, contender.distance_ms,
                    hit.loaded_tokens, hit.load_ms, hit.tiers, evicted(replica_id, size),
                )
            )  # fmt: skip
        return candidates

    def _memory(self, load: Load, new_tokens: int, size: int | None) -> tuple[float, float, float]:
        """What of the cache is in use, what the prompt would take of it, and until when it waits
        for that: the candidate's `full`, `memory_ms` and `memory_wait_ms`."""
        if not size:
            return 0.0, 0.0, 0.0
        answers, resident = self.reservations.answers, load.resident_tokens
        # an answer finds its room while it grows
        footprint, over = new_tokens + answers.mean_tokens / 2, resident + new_tokens - size
        wait_ms = over / resident * answers.mean_ms if over > 0 and resident else 0.0
        return resident / size, footprint / size * answers.mean_ms, wait_ms

    def _hits(
        self, prefix: Prefix, prompt_tokens: int, known: Known | None
    ) -> dict[ReplicaId, Hit]:
        hashes, size = prefix.hashes, prefix.block_size
        if not hashes:
            return {}
        tiers: Loads = {}
        if self.policy.uses_history:
            matched: Mapping[ReplicaId, int] = self.history.match(hashes)
        else:
            # an index has a length, and counts all that it holds when asked for its truth
            matched = (self.index if known is None else known).match(hashes)
            tiers = (self.beyond if known is None else known.beyond)(hashes, matched)
        expected = self.reservations.expected(hashes)
        # engines always compute a prompt's last token
        most_tokens = max(0, (prompt_tokens - 1) // size) * size
        return hits(matched, expected, tiers, size, most_tokens)


def _most_wait_ms(ttft: Ttft, load: Load) -> float:
    """What waits there, by this router's own speed. Others may have learnt another one, or none:
    whoever compares their queue with computing elsewhere must measure both by one speed."""
    computing_ms = ttft.queued_ms(load.queued_tokens, load.queued_pairs)
    return computing_ms + ttft.step_ms(load.running)
