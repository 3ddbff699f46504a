"""Decides where a generation goes: tokenize → hash → match → rank → reserve.

Tokenizing is the only wait. All that follows is synchronous, so no other request can come between
reading the loads and adding this one to them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from xxhash import xxh3_64_hexdigest

from router.blocks import BlockHash, prefix_seed
from router.blocks.hashing import BYTES_PER_TOKEN
from router.errors import ModelNotFound, NoReplicaAvailable
from router.index.protocol import PrefixIndex
from router.index.reservations import Reservation, Reservations
from router.openai.generation import Generation
from router.replicas import Member, Pool, Replica, ReplicaId
from router.routing import Candidate, Decision, Policy, RouteQuery, Speeds
from router.tokens.block_memo import BlockMemo
from router.tokens.once import body_with_ids
from router.tokens.protocol import TokenizeFailed, Tokenizer

RING_BLOCKS: Final = 8
"""Without a session, consistent hashing is over a prompt's beginning up to so many blocks beyond
what is held already: prompts that share only what everybody has are not alike."""


@dataclass(slots=True)
class Plan:
    """Where one generation goes, and its claim on the replica that serves it.

    A `with` block: the claim starts with the plan and ends with the block. `move` takes it along
    when another replica is tried.
    """

    decision: Decision
    replicas: tuple[Replica, ...]
    candidates: Mapping[ReplicaId, Candidate]
    prompt_tokens: int
    prefixes: Mapping[ReplicaId, "Prefix"]
    tokenize_failure: str
    stream: bool
    generation: Generation
    body: bytes
    """What the replica is sent: the client's own bytes, unless ids go in the text's place."""
    fleet: str
    _reservations: Reservations
    _speeds: Speeds
    _clock: Callable[[], float]
    _claim: Reservation | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    def move(self, replica_id: ReplicaId) -> None:
        """The request goes to this replica now. Moving to where it is changes nothing."""
        if self._claim is not None and self._claim.replica_id == replica_id:
            return
        self._release()
        candidate = self.candidates[replica_id]
        uncached = max(self.prompt_tokens - candidate.hit_tokens, min(1, self.prompt_tokens))
        self._claim = Reservation(
            replica_id=replica_id,
            uncached_tokens=uncached,
            cost_ms=uncached * candidate.ttft.ms_per_token,
            prefix=self.prefixes[replica_id].hashes,
            booked_at=self._clock(),
            silent=not self.stream,
        )
        self._reservations.take(self._claim)

    def first_token(self) -> float | None:
        """Its first token came: the prompt is computed. Returns the TTFT in ms, if it is one.

        A reply that isn't streamed has no first token, and a prompt of unknown length teaches
        nothing about speed.
        """
        claim = self._claim
        if claim is None or not self.stream:
            return None
        ttft_ms = (self._clock() - claim.booked_at) * 1e3
        self._reservations.computed(claim)
        if self.prompt_tokens:
            self._speeds.observe(
                claim.replica_id, self.fleet, claim.work_tokens, claim.running_then, ttft_ms
            )
        return ttft_ms

    def predicted_hit_tokens(self, replica_id: ReplicaId) -> int | None:
        """Prompt tokens that the replica should reuse; None if the prompt isn't known."""
        return self.candidates[replica_id].hit_tokens if self.prompt_tokens else None

    def _release(self) -> None:
        if self._claim is not None:
            self._reservations.release(self._claim)
            self._claim = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt cut into one replica's blocks. `block_size` is 0 while it isn't known."""

    hashes: Sequence[BlockHash] = ()
    block_size: int = 0

    @property
    def blocks(self) -> int:
        return len(self.hashes)


NO_PREFIX: Final = Prefix()


@dataclass(slots=True)
class Planner:
    """What this project is for."""

    pool: Pool
    index: PrefixIndex
    reservations: Reservations
    speeds: Speeds
    tokenizer: Tokenizer
    policy: Policy
    clock: Callable[[], float]
    memo: BlockMemo = field(default_factory=lambda: BlockMemo(0))
    forward_ids: bool = False

    async def plan(self, generation: Generation) -> Plan:
        """Choose and reserve. ModelNotFound, NoReplicaAvailable.

        When tokenizing fails or is late the request is routed without its prefix: worse, not
        broken.
        """
        self._members(generation.model)
        tokens, failure = b"", ""
        if self.policy.needs_prefix:
            try:
                tokens = await self.tokenizer.tokenize(generation)
            except TokenizeFailed as exc:
                failure = str(exc.reason)
        return self._choose(generation, tokens, failure)

    def _choose(self, generation: Generation, tokens: bytes, failure: str) -> Plan:
        members = self._members(generation.model)
        prompt_tokens = len(tokens) // BYTES_PER_TOKEN
        prefixes = self._prefixes(generation, members, tokens)
        candidates = self._candidates(members, prefixes, prompt_tokens)
        query = RouteQuery(prompt_tokens, _ring_key(generation, tokens, prefixes, candidates))
        decision = self.policy.rank(query, candidates)
        by_id = {member.id: member.replica for member in members}
        plan = Plan(
            decision=decision,
            replicas=tuple(by_id[replica_id] for replica_id in decision.replicas),
            candidates={candidate.replica_id: candidate for candidate in candidates},
            prompt_tokens=prompt_tokens,
            prefixes=prefixes,
            tokenize_failure=failure,
            stream=generation.stream,
            generation=generation,
            body=body_with_ids(generation, tokens) if self.forward_ids else generation.body,
            fleet=members[0].base_model,
            _reservations=self.reservations,
            _speeds=self.speeds,
            _clock=self.clock,
        )
        plan.move(decision.replicas[0])
        return plan

    def _members(self, model: str) -> list[Member]:
        if members := self.pool.available(model):
            return members
        if self.pool.knows(model):
            raise NoReplicaAvailable(
                f"No replica of {model!r} can be reached now. Try again shortly; "
                "GET /debug/replicas says what is wrong with each.",
                retry_after_s=1.0,
            )
        if known := sorted({name for member in self.pool for name in member.models}):
            raise ModelNotFound(f"No model {model!r} here. Served are: {', '.join(known)}.")
        raise NoReplicaAvailable(
            "No replica has answered yet. Check that the engines are up and that their URLs are "
            "right; GET /debug/replicas lists them with their last error.",
            retry_after_s=1.0,
        )

    def _prefixes(
        self, generation: Generation, members: Sequence[Member], tokens: bytes
    ) -> dict[ReplicaId, Prefix]:
        """The prompt in each replica's blocks; hashed once for each block size and adapter."""
        made: dict[tuple[int, str | None], Prefix] = {}
        prefixes: dict[ReplicaId, Prefix] = {}
        for member in members:
            size = min(self.index.block_sizes(member.id), default=0) if tokens else 0
            adapter = generation.model if member.is_adapter(generation.model) else None
            prefix = made.get((size, adapter), NO_PREFIX)
            if size and prefix is NO_PREFIX:
                seed = prefix_seed(generation.salt, adapter)
                prefix = Prefix(self.memo.hash_blocks(tokens, size, seed), size)
                made[size, adapter] = prefix
            prefixes[member.id] = prefix
        return prefixes

    def _candidates(
        self,
        members: Sequence[Member],
        prefixes: Mapping[ReplicaId, Prefix],
        prompt_tokens: int,
    ) -> list[Candidate]:
        distinct = {id(prefix): prefix for prefix in prefixes.values() if prefix.hashes}
        matched = {key: self.index.match(prefix.hashes) for key, prefix in distinct.items()}
        expected = {
            key: self.reservations.expected(prefix.hashes) for key, prefix in distinct.items()
        }
        candidates = []
        for member in members:
            prefix = prefixes[member.id]
            held = matched.get(id(prefix), {}).get(member.id, 0)
            coming = expected.get(id(prefix), {}).get(member.id, 0)
            load = self.reservations.load(member.id)
            candidates.append(
                Candidate(
                    replica_id=member.id,
                    ttft=self.speeds.of(member.id, member.base_model),
                    matched_tokens=_hit(held, prefix.block_size, prompt_tokens),
                    hit_tokens=_hit(max(held, coming), prefix.block_size, prompt_tokens),
                    wait_ms=load.wait_ms,
                    queued_tokens=load.queued_tokens,
                    running=load.running,
                    in_flight=load.in_flight,
                    busy=load.busy,
                )
            )
        return candidates


def _hit(blocks: int, block_size: int, prompt_tokens: int) -> int:
    """Tokens that an engine reuses of `blocks` held ones: never a prompt's last token."""
    if not blocks:
        return 0
    return min(blocks, (prompt_tokens - 1) // block_size) * block_size


def _ring_key(
    generation: Generation,
    tokens: bytes,
    prefixes: Mapping[ReplicaId, Prefix],
    candidates: Sequence[Candidate],
) -> str:
    if generation.session is not None:
        return generation.session
    prefix = prefixes[candidates[0].replica_id]
    if prefix.hashes:
        held = max(candidate.hit_tokens for candidate in candidates) // prefix.block_size
        return f"{prefix.hashes[min(held + RING_BLOCKS, prefix.blocks) - 1]:x}"
    start = tokens or generation.body[:4096]
    return xxh3_64_hexdigest(start, prefix_seed(generation.salt, generation.model))
