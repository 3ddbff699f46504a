"""From a prompt's blocks to a claim on a replica: match → rank → reserve, with nothing in between.

All of it is synchronous, so no other request can come between reading the loads and adding this
one to them. The gateway's planner and the simulator run this same code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from router.blocks import BlockHash
from router.index.protocol import PrefixIndex
from router.index.reservations import Reservation, Reservations
from router.index.tiers import Load, Loads
from router.replicas import ReplicaId
from router.routing.cost import BUSIEST
from router.routing.decision import Decision, Reason
from router.routing.history import History
from router.routing.policies import Policy
from router.routing.query import Candidate, RouteQuery
from router.routing.ttft import Sample, Speeds

RING_BLOCKS: Final = 8
"""Without a session, consistent hashing is over a prompt's beginning up to so many blocks beyond
what is held already: prompts that share only what everybody has are not alike."""


class Prefix(Struct, frozen=True):
    """A prompt cut into one replica's blocks. `block_size` is 0 while it isn't known."""

    hashes: Sequence[BlockHash] = ()
    block_size: int = 0

    @property
    def blocks(self) -> int:
        return len(self.hashes)


NO_PREFIX: Final = Prefix()


class Contender(Struct, frozen=True):
    """A replica that could serve, and the prompt in its blocks.

    `fleet`: who is like it. `distance_ms`: the way there and back.
    """

    replica_id: ReplicaId
    fleet: str
    prefix: Prefix = NO_PREFIX
    distance_ms: float = 0.0


class Ask(Struct, frozen=True, gc=False):
    """What is to be placed. `session`: what stickiness keeps together, if the client said.

    `start_key` stands for the prompt's beginning where no contender's blocks are known.
    """

    prompt_tokens: int
    session: str | None = None
    start_key: str = ""


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

    def kept_by(self, owner: ReplicaId | None) -> "Choice":
        """Nobody else can answer what goes on from an answer that `owner` keeps. If it is away,
        whoever is asked says that it knows of none."""
        if owner is None or owner not in self.candidates:
            return self
        return replace(self, decision=replace(self.decision, replicas=(owner,), reason=Reason.KEPT))


@dataclass(slots=True)
class Claim:
    """One request's hold on one replica, from the choice to the end of the reply."""

    choice: Choice
    reservation: Reservation
    _chooser: "Chooser"

    @property
    def replica_id(self) -> ReplicaId:
        return self.reservation.replica_id

    def first_token(self) -> float:
        """The prompt is computed: it decodes from now on. Returns the TTFT in ms.

        A prompt of unknown length teaches nothing about speed, nor does one that may have waited
        for memory.
        """
        chooser, booked = self._chooser, self.reservation
        ttft_ms = (chooser.clock() - booked.booked_at) * 1e3
        batch = chooser.reservations.computed(booked)
        if batch is not None and batch.is_lesson:
            where = self.choice.contenders[booked.replica_id]
            service_ms = max((batch.ended - batch.began) * 1e3 - where.distance_ms, 0.0)
            sample = Sample(batch.uncached_tokens, batch.hit_tokens, batch.running, service_ms)
            chooser.speeds.observe(booked.replica_id, where.fleet, sample)
        return ttft_ms

    def release(self, answer_tokens: int | None = None) -> None:
        """It is over, however it ended. Idempotent. `answer_tokens`: where usage told them."""
        self._chooser.reservations.release(self.reservation, answer_tokens)


@dataclass(slots=True)
class Chooser:
    """What the router knows, and the policy that reads it."""

    index: PrefixIndex
    reservations: Reservations
    speeds: Speeds
    policy: Policy
    clock: Callable[[], float]
    history: History = field(default_factory=History)
    beyond: Callable[[Sequence[BlockHash], Mapping[ReplicaId, int]], Loads] = no_loads
    """What slower tiers add to a match; see `TieredIndex.beyond`."""
    cache_tokens: dict[ReplicaId, int] = field(default_factory=dict)
    """How large each replica's cache is, where it has said so."""

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left. What the index knows of it is the index's own to forget."""
        self.speeds.forget(replica_id)
        self.reservations.forget(replica_id)
        self.history.forget(replica_id)
        self.cache_tokens.pop(replica_id, None)

    def consider(self, ask: Ask, contenders: Sequence[Contender]) -> Choice:
        """Where this would go, and why. No side effect but a policy's own turn."""
        candidates = self._candidates(ask, contenders)
        query = RouteQuery(ask.prompt_tokens, _ring_key(ask, contenders, candidates))
        return Choice(
            query=query,
            decision=self.policy.rank(query, candidates),
            candidates={candidate.replica_id: candidate for candidate in candidates},
            contenders={contender.replica_id: contender for contender in contenders},
            ask=ask,
        )

    def claim(self, choice: Choice, replica_id: ReplicaId, *, silent: bool = False) -> Claim:
        """Book the request there. `silent`: its reply will show no first token."""
        candidate = choice.candidates[replica_id]
        contender = choice.contenders[replica_id]
        prompt_tokens = choice.query.prompt_tokens
        uncached = max(prompt_tokens - candidate.hit_tokens, min(1, prompt_tokens))
        reservation = Reservation(
            replica_id=replica_id,
            uncached_tokens=uncached,
            cost_ms=candidate.ttft.computing_ms(uncached),
            reusing_ms=candidate.ttft.reusing_ms(prompt_tokens - uncached),
            prefix=contender.prefix.hashes,
            booked_at=self.clock(),
            silent=silent,
            prompt_tokens=prompt_tokens,
            block_size=contender.prefix.block_size,
            is_lesson=prompt_tokens > 0 and candidate.full <= BUSIEST and not silent,
        )
        self.reservations.take(reservation)
        if self.policy.uses_history:
            self.history.routed(replica_id, contender.prefix.hashes)
        return Claim(choice, reservation, self)

    def _candidates(self, ask: Ask, contenders: Sequence[Contender]) -> list[Candidate]:
        # before what is coming: another process may choose in between, and whoever saw its load
        # without its prefix would flee from what it should wait for
        loads = {c.replica_id: self.reservations.load(c.replica_id) for c in contenders}
        holders = self.history if self.policy.uses_history else self.index
        distinct = {id(c.prefix): c.prefix for c in contenders if c.prefix.hashes}
        matched = {key: holders.match(prefix.hashes) for key, prefix in distinct.items()}
        beyond = no_loads if self.policy.uses_history else self.beyond
        tier_loads = {key: beyond(prefix.hashes, matched[key]) for key, prefix in distinct.items()}
        expected = {
            key: self.reservations.expected(prefix.hashes) for key, prefix in distinct.items()
        }
        candidates = []
        for contender in contenders:
            prefix, replica_id = contender.prefix, contender.replica_id
            held = matched.get(id(prefix), {}).get(replica_id, 0)
            coming = expected.get(id(prefix), {}).get(replica_id, 0)
            load = loads[replica_id]
            parts = tier_loads.get(id(prefix), {}).get(replica_id, ())
            near = max(held, coming)
            end, load_ms = _loading(parts, held, near, prefix.block_size)
            hit_tokens = _hit(end, prefix.block_size, ask.prompt_tokens)
            memory = self._memory(contender, load.resident_tokens, ask.prompt_tokens)
            ttft = self.speeds.of(replica_id, contender.fleet)
            # Others may have learnt another speed, or none: whoever compares their queue with
            # computing elsewhere must measure both by one speed.
            wait_ms = min(load.wait_ms, ttft.computing_ms(load.queued_tokens))
            candidates.append(
                Candidate(
                    replica_id=replica_id,
                    ttft=ttft,
                    matched_tokens=_hit(held, prefix.block_size, ask.prompt_tokens),
                    hit_tokens=hit_tokens,
                    wait_ms=wait_ms,
                    queued_tokens=load.queued_tokens,
                    running=load.running,
                    in_flight=load.in_flight,
                    busy=load.busy,
                    mean_ms=load.mean_ms,
                    full=memory.full,
                    memory_ms=memory.use_ms,
                    memory_wait_ms=memory.wait_ms,
                    distance_ms=contender.distance_ms,
                    loaded_tokens=hit_tokens - _hit(near, prefix.block_size, ask.prompt_tokens),
                    load_ms=load_ms,
                    tiers=parts,
                )
            )
        return candidates

    def _memory(self, contender: Contender, resident: int, prompt_tokens: int) -> "_Memory":
        size = self.cache_tokens.get(contender.replica_id, 0)
        answers = self.reservations.answers
        if not size:
            return _Memory()
        prefix = contender.prefix
        footprint = answers.mean_tokens / 2 + self.reservations.footprint(
            contender.replica_id, prefix.hashes, prefix.block_size, prompt_tokens
        )
        over = resident + footprint - size
        wait_ms = over / resident * answers.mean_ms if over > 0 and resident else 0.0
        return _Memory(resident / size, footprint / size * answers.mean_ms, wait_ms)


class _Memory(Struct, frozen=True, gc=False):
    """See `Candidate`."""

    full: float = 0.0
    use_ms: float = 0.0
    wait_ms: float = 0.0


def _loading(parts: Sequence[Load], held: int, near: int, block_size: int) -> tuple[int, float]:
    """Where a hit ends that slower tiers add to, in blocks, and how long loading them takes, in ms.

    `parts` begin behind `held` blocks; of them, those up to `near` need not be loaded.
    """
    end, load_ms = held, 0.0
    for part in parts:
        first, end = max(end, near), end + part.blocks
        load_ms += max(0, end - first) * block_size * part.ms_per_token
    return max(near, end), load_ms


def _hit(blocks: int, block_size: int, prompt_tokens: int) -> int:
    """Tokens that an engine reuses of `blocks` held ones: never a prompt's last token."""
    if not blocks:
        return 0
    return min(blocks, (prompt_tokens - 1) // block_size) * block_size


def _ring_key(ask: Ask, contenders: Sequence[Contender], candidates: Sequence[Candidate]) -> str:
    if ask.session is not None:
        return ask.session
    prefix = contenders[0].prefix
    if not prefix.hashes:
        return ask.start_key
    held = max(candidate.hit_tokens for candidate in candidates) // prefix.block_size
    return f"{prefix.hashes[min(held + RING_BLOCKS, prefix.blocks) - 1]:x}"
