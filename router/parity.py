"""The self-test: does the router see of each replica what the engine does? Each mistake by name.

A probe with a salt of its own goes to the replica directly; its stored blocks must come as events
with the token ids that we compute, and the second asking must reuse what the events promise.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import aiohttp

from router.blocks import BlockStored, MalformedFrame
from router.blocks.hashing import TYPE_CODE
from router.events.keeper import NO_EVENTS, Keeper
from router.events.probe import Engine, Listener, Probe, listening
from router.events.sources import DialSources
from router.events.trust import ReplicaTrust, Trust
from router.openai.generation import parse_generation
from router.replicas import Member, Replica
from router.tokens.protocol import TokenizeFailed, Tokenizer

LINK_S: Final = 3.0
EVENT_S: Final = 5.0
_POLL_S: Final = 0.02
_LOOK_EVERY_S: Final = 0.5
log = logging.getLogger(__name__)

TokenizerOf = Callable[[str], Tokenizer]
"""Model → the tokenizer that the router uses first for it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found at one replica. `mistakes`: each with its cure; none means all is well."""

    replica_id: str
    facts: str
    mistakes: tuple[str, ...]
    block_size: int = 0
    """As its events said; 0 if none came."""

    @property
    def is_good(self) -> bool:
        return not self.mistakes


@dataclass(frozen=True, slots=True)
class Parity:
    """Checks replicas one by one. `timeout_s`: of one answer."""

    session: aiohttp.ClientSession
    sources: DialSources
    tokenizer_of: TokenizerOf
    rng: Random
    timeout_s: float = 60.0

    async def check(
        self, replica: Replica, wanted_models: Sequence[str] = (), block_size: int | None = None
    ) -> Verdict:
        """`wanted_models`: those that the settings name. `block_size`: the index's, if known."""
        engine = Engine(self.session, replica, self.timeout_s)
        try:
            models = await engine.models()
            if not models:
                return Verdict(replica.id, "", (f"{replica.url} serves no model",))
            unknown = [name for name in wanted_models if name not in models]
            mistakes = [_wrong_model(replica, name, models) for name in unknown]
            source = await self.sources.open(replica)
            if source is None:
                return Verdict(replica.id, "", (*mistakes, NO_EVENTS))
            async with listening(source) as listener:
                trouble = await self._link_trouble(replica, listener)
                if trouble:
                    return Verdict(replica.id, "", (*mistakes, trouble))
                found = await self._probe(engine, models[0], listener, block_size)
            return replace(found, mistakes=(*mistakes, *found.mistakes))
        except (aiohttp.ClientError, TimeoutError) as exc:
            why = str(exc) or type(exc).__name__
            return Verdict(replica.id, "", (f"{replica.url} does not answer: {why}",))
        except MalformedFrame as exc:
            return Verdict(replica.id, "", (f"{replica.events_url} is no event stream: {exc}",))

    async def _link_trouble(self, replica: Replica, listener: Listener) -> str:
        try:
            async with asyncio.timeout(LINK_S):
                await listener.link.wait()
        except TimeoutError:
            named = await self.sources.ask(replica)
            hint = f"; the replica itself names {named}" if named else ""
            why = listener.trouble or "no answer"
            return f"no event stream at {replica.events_url or named}: {why}: wrong port?{hint}"
        return ""

    async def _probe(
        self, engine: Engine, model: str, listener: Listener, block_size: int | None
    ) -> Verdict:
        probe = Probe.draw(model, self.rng)
        first = await engine.answer(probe)
        if "error" in first:
            return Verdict(engine.replica.id, "", (f"the probe was refused: {first['error']}",))
        prompt_tokens = int(first.get("usage", {}).get("prompt_tokens", 0))
        chain = await _wait_for(lambda: listener.of_salt(probe.salt))
        if not chain:
            return Verdict(engine.replica.id, "", (_silence(listener, prompt_tokens),))
        size = chain[0].block_size
        mistakes = []
        if block_size is not None and size != block_size:
            mistakes.append(
                f"replica {engine.replica.id} publishes block size {size}, the index uses "
                f"{block_size}; start vLLM with --block-size {block_size}"
            )
        mistakes += await self._compare_tokens(engine, probe, chain)
        cached = _cached_tokens(await engine.answer(probe))
        mistakes += _judge_hit(cached, size, prompt_tokens)
        blocks = prompt_tokens // size
        facts = f"{blocks} blocks of {size} tokens, {cached} cached on the second ask"
        return Verdict(engine.replica.id, facts, tuple(mistakes), size)

    async def _compare_tokens(
        self, engine: Engine, probe: Probe, chain: Sequence[BlockStored]
    ) -> list[str]:
        theirs = [token for event in chain for token in event.token_ids]
        ours = await self._ours("/v1/chat/completions", probe.raw)
        if isinstance(ours, str):
            return [f"the router can't tokenize for {probe.model}: {ours}"]
        length = min(len(ours), len(theirs))
        if ours[:length] == theirs[:length]:
            return []
        at = next(i for i in range(length) if ours[i] != theirs[i])
        plain = await engine.tokenize(probe.model, probe.text)
        text_only = json.dumps({"model": probe.model, "prompt": probe.text}).encode()
        mine = await self._ours("/v1/completions", text_only)
        where = f"token {at} is {ours[at]} here and {theirs[at]} there"
        if plain is not None and mine != plain:
            return [f"wrong tokenizer: {where}; tokens.models must name {probe.model}'s own files"]
        return [
            f"wrong chat template: {where}; give the router the engine's --chat-template "
            "(tokens.engines), or its model's directory"
        ]

    async def _ours(self, path: str, body: bytes) -> list[int] | str:
        generation = parse_generation(path, {}, body)
        try:
            ids = await self.tokenizer_of(generation.model).tokenize(generation)
        except TokenizeFailed as exc:
            return str(exc.reason)
        return list(memoryview(ids).cast(TYPE_CODE))


@dataclass(slots=True)
class SelfTest:
    """Checks each replica whose events begin a new epoch; a mistake costs it EXACT."""

    members: Iterable[Member]
    keeper: Keeper
    parity: Parity
    is_wanted: bool = True
    _tested: dict[str, int] = field(default_factory=dict)
    """Replica → the epoch in which it was checked last."""

    async def run(self) -> None:
        """Look for new epochs until cancelled."""
        while self.is_wanted:
            for member in list(self.members):
                trust = self.keeper.of(member.id).trust
                is_new = self._tested.get(member.id) != trust.epoch
                if is_new and member.is_healthy and trust.trust is Trust.EXACT:
                    self._tested[member.id] = trust.epoch
                    await self._test(member, trust)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _test(self, member: Member, trust: ReplicaTrust) -> None:
        epoch = trust.epoch
        verdict = await self.parity.check(member.replica)
        for mistake in verdict.mistakes:
            log.warning("replica %s: self-test: %s", member.id, mistake)
        if trust.epoch == epoch:
            trust.accuse("; ".join(verdict.mistakes))


def _wrong_model(replica: Replica, name: str, models: Sequence[str]) -> str:
    served = ", ".join(models)
    return (
        f"wrong model name: tokens.models names {name!r}, {replica.id} serves {served}; use vLLM's "
        "--served-model-name"
    )


def _silence(listener: Listener, prompt_tokens: int) -> str:
    if listener.events and not any(event.extra_keys for event in listener.events):
        return "its events don't tell salts apart (vLLM before 0.17): don't use cache_salt with it"
    return (
        f"no event came for a prompt of {prompt_tokens} tokens: prefix caching is off (start vLLM "
        "with --enable-prefix-caching), or the event port is another engine's"
    )


def _judge_hit(cached: int | None, size: int, prompt_tokens: int) -> list[str]:
    expected = (prompt_tokens - 1) // size * size
    if cached is None:
        return ["it does not report cached tokens: start vLLM with --enable-prompt-tokens-details"]
    if cached != expected:
        return [f"its events promised {expected} cached tokens, it reused {cached}"]
    return []


def _cached_tokens(reply: Mapping[str, Any]) -> int | None:
    details = reply.get("usage", {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return int(cached) if cached is not None else None


async def _wait_for(
    look: Callable[[], list[BlockStored]], within_s: float = EVENT_S
) -> list[BlockStored]:
    """What `look` finds, once it finds something and for a moment more: events come in parts."""
    for _ in range(int(within_s / _POLL_S)):
        if look():
            await asyncio.sleep(5 * _POLL_S)
            break
        await asyncio.sleep(_POLL_S)
    return look()
