"""Decides where a generation goes: tokenize → hash → match → rank → reserve.

From reading the loads to adding this request to them all is synchronous, so no other request can
come between; of other processes' requests only long prompts' can't (`turns`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from router.blocks import hash_blocks, prefix_seed
from router.blocks.hashing import BYTES_PER_TOKEN
from router.blocks.remembered import RememberedIds
from router.errors import ModelNotFound, NoReplicaAvailable
from router.index.answers import Known
from router.openai.generation import Generation, Kind
from router.openai.responses import previous_response
from router.plan import Plan as Plan
from router.queueing import NoQueue, Queue
from router.replicas import Member, Pool, Replica, ReplicaId
from router.routing import Reason
from router.routing.choosing import NO_PREFIX, Ask, Choice, Chooser, Contender, Prefix
from router.routing.hot import HotBeginnings, NothingHot
from router.routing.shadow import NoShadows, Shadows
from router.source import Source
from router.tokens.once import body_with_ids
from router.tokens.protocol import TokenizeFailed, Tokenizer
from router.turns import Turns

OwnerOf: TypeAlias = Callable[[str], Awaitable[ReplicaId | None]]
"""Who keeps a stored response, by its id."""


async def _nobody(response_id: str) -> ReplicaId | None:
    return None


class _Told(Struct):
    """A prompt while it is planned: its blocks, by block size and adapter, and who holds them."""

    tokens: bytes
    known: Known | None
    tokenize_failure: str = ""
    failure: str = ""
    prefixes: dict[tuple[int, str | None], Prefix] = {}
    members: Sequence[Member] = ()
    contenders: list[Contender] = []
    """As they were when it was asked who holds the prompt."""


@dataclass(slots=True)
class Planner:
    """What this project is for."""

    pool: Pool
    tokenizer: Tokenizer
    source: Source
    chooser: Chooser
    forward_ids: Collection[Kind] = ()
    """Of what kinds of requests the replica is sent ids."""
    shadows: Shadows | NoShadows = field(default_factory=NoShadows)
    owner_of: OwnerOf = _nobody
    queue: Queue | NoQueue = field(default_factory=NoQueue)
    hot: HotBeginnings | NothingHot = field(default_factory=NothingHot)
    turns: Turns = field(default_factory=Turns)

    async def plan(self, generation: Generation, tenant: str = "") -> Plan:
        """Choose and reserve. ModelNotFound, NoReplicaAvailable, QueueFull, QueueTimeout.

        When tokenizing fails or is late the request is routed without its prefix.
        """
        if not self.pool.serves(generation.model):
            self._members(generation.model)  # raises, and says why
        tokens, failure = b"", ""
        if self.chooser.policy.needs_prefix or self.shadows.needs_prefix:
            tokens, failure = await self._tokenize(generation)
        told = _Told(tokens, self.source.at_hand, failure)
        if told.known is None:
            await self._ask(generation, told, self.chooser)
        previous = previous_response(generation)
        owner = None if previous is None else await self.owner_of(previous)
        begun, may_want_turn = 0, self.turns.may_want(len(tokens) // BYTES_PER_TOKEN)

        def look() -> Choice:
            nonlocal begun
            begun = self.turns.begun if may_want_turn else 0
            return self._consider(generation, told, self.chooser).kept_by(owner)

        choice, queued_ms = look(), 0.0
        is_kept = choice.decision.reason is Reason.KEPT  # it has one place to go, free or not
        if not is_kept and self.queue.holds(generation.model, choice):
            began = self.chooser.clock()
            choice = await self.queue.wait(generation.model, tenant, look)
            queued_ms = (self.chooser.clock() - began) * 1e3
        elif self.turns.is_wanted(choice):
            with await self.turns.take(choice):
                choice = choice if self.turns.begun == begun else look()
                return self._reserve(generation, told, choice)
        return self._reserve(generation, told, choice, queued_ms)

    def _reserve(
        self, generation: Generation, told: _Told, choice: Choice, queued_ms: float = 0.0
    ) -> Plan:
        plan = Plan(
            choice=choice,
            replicas=self._replicas(choice),
            tokenize_failure=told.tokenize_failure,
            stream=generation.stream,
            generation=generation,
            body=body_with_ids(generation, told.tokens, self.forward_ids),
            _chooser=self.chooser,
            _queue=self.queue,
            index_failure=told.failure,
            queued_ms=queued_ms,
        )
        self.shadows.observe(choice)
        self.hot.note(generation.model, generation.salt, told.tokens, choice)
        plan.move(choice.decision.replicas[0])
        return plan

    def _replicas(self, choice: Choice) -> tuple[Replica, ...]:
        members = map(self.pool.get, choice.decision.replicas)
        return tuple([member.replica for member in members if member is not None])

    async def explain(self, generation: Generation) -> tuple[Choice, str, str]:
        """Where it would go now, and why tokenizing and the central index failed, if they did.

        Nothing is booked. Asked of a copy of the policy: its turn stays where it is.
        """
        self._members(generation.model)
        tokens, failure = await self._tokenize(generation)
        chooser = replace(self.chooser, policy=deepcopy(self.chooser.policy))
        previous = previous_response(generation)
        owner = None if previous is None else await self.owner_of(previous)
        told = _Told(tokens, self.source.at_hand)
        if told.known is None:
            await self._ask(generation, told, chooser)
        return self._consider(generation, told, chooser).kept_by(owner), failure, told.failure

    async def _tokenize(self, generation: Generation) -> tuple[bytes, str]:
        if (known := self.tokenizer.recall(generation)) is not None:
            return known, ""
        try:
            return await self.tokenizer.tokenize(generation), ""
        except TokenizeFailed as exc:
            return b"", str(exc.reason)

    async def _ask(self, generation: Generation, told: _Told, chooser: Chooser) -> None:
        """No index is at hand: what must be waited for is added to what is told."""
        if told.tokens and not chooser.policy.uses_history:
            told.members = self._members(generation.model)
            told.contenders = self._contenders(generation, told.members, told)
            prefixes = [prefix.hashes for prefix in told.prefixes.values() if prefix.hashes]
            told.known, told.failure = await self.source.ask(prefixes)

    def _consider(self, generation: Generation, told: _Told, chooser: Chooser) -> Choice:
        tokens = told.tokens
        contenders = self._contenders(generation, self._members(generation.model), told)
        start_key = ""
        if not contenders[0].prefix.hashes:
            start = tokens or generation.body[:4096]
            start_key = xxh3_64_hexdigest(start, prefix_seed(generation.salt, generation.model))
        ask = Ask(len(tokens) // BYTES_PER_TOKEN, generation.session, start_key)
        choice = chooser.consider(ask, contenders, told.known)
        return choice.blind() if told.failure and chooser.policy.needs_prefix else choice

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

    def _contenders(
        self, generation: Generation, members: Sequence[Member], told: _Told
    ) -> list[Contender]:
        """The prompt in each replica's blocks; hashed once for each block size and adapter."""
        if told.contenders and members == told.members:
            return told.contenders
        tokens, made, model = told.tokens, told.prefixes, generation.model
        sizes_of = self.source.block_sizes
        contenders = []
        for member in members:
            replica, prefix = member.replica, NO_PREFIX
            if tokens and (sizes := sizes_of(replica.id)):
                size, adapter = min(sizes), model if member.is_adapter(model) else None
                if (found := made.get((size, adapter))) is None:
                    seed = prefix_seed(generation.salt, adapter)
                    if type(tokens) is RememberedIds:
                        found = Prefix(tokens.hash_blocks(size, seed), size)
                    else:
                        found = Prefix(hash_blocks(tokens, size, seed), size)
                    made[size, adapter] = found
                prefix = found
            contenders.append(Contender(replica.id, member.base_model, prefix, replica.distance_ms))
        return contenders
