"""The engine: one core and one publisher per rank behind one tokenizer, and its two lives' ends."""

import asyncio
import logging
import secrets
from array import array
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from workers.engine.asks import Ask, Refused, answer_limit
from workers.engine.clock import Clock
from workers.engine.core import CoreLimits, EngineCore
from workers.engine.faults import FaultPlan, Faults
from workers.engine.metrics import CoreGauges, CoreMetrics, EngineCollector
from workers.engine.options import EngineOptions, settle
from workers.engine.publisher import Publisher, PublisherSettings
from workers.engine.sequence import Adapter, Chain, Ending, Identity, Listener, Sequence
from workers.engine.text import Author, read_vocabulary
from workers.engine.tokenizer import Tokenizer

_BITS: Final = 2**64
_SLOW_TEXT: Final = 16_384
"""Longer texts (in characters) are encoded in a thread: they would hold up every stream."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rank:
    """One data-parallel rank."""

    core: EngineCore
    publisher: Publisher
    metrics: CoreMetrics


class Engine:
    """All but HTTP. `open` and `close` must run in the loop that serves it."""

    def __init__(self, options: EngineOptions, clock: Clock) -> None:
        self.options = options
        self.profile, self.sizes = settle(options)
        self.tokenizer = Tokenizer()
        self.author = Author(read_vocabulary(self.tokenizer), options.answer_tokens)
        self.adapters = {
            name: Adapter(name, number) for number, name in enumerate(options.adapters, start=1)
        }
        seed = secrets.randbits(64) if options.seed is None else options.seed
        self._root = seed % _BITS
        self.faults = FaultPlan(options.faults, Random(seed))
        self.ranks = [self._build_rank(rank, clock) for rank in range(options.data_parallel_size)]
        self.collector = EngineCollector(
            options.model_names[0], [rank.metrics for rank in self.ranks], self._cache_config()
        )
        self.draining = False
        self._loops: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Bind the event sockets and start stepping."""
        for rank in self.ranks:
            await rank.publisher.open()
        self._start_loops()

    async def close(self) -> None:
        """Stop stepping and publishing; what still runs is cut off."""
        await self._stop_loops()
        for rank in self.ranks:
            rank.core.restart(keep_cache=False)
            await rank.publisher.destroy()

    async def restart(self, *, keep_cache: bool) -> None:
        """Die and live again: connections break, event numbers begin at 0."""
        await self._stop_loops()
        for rank in self.ranks:
            rank.core.restart(keep_cache=keep_cache)
            await rank.publisher.close()

    async def revive(self) -> None:
        """The second half of a restart."""
        for rank in self.ranks:
            await rank.publisher.restart()
        self._start_loops()

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and wait for what runs. False if time ran out."""
        self.draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.load:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    @property
    def load(self) -> int:
        """Sequences in the engine."""
        return sum(rank.core.load for rank in self.ranks)

    @property
    def alive(self) -> bool:
        """Whether every core's loop still runs."""
        return not any(loop.done() for loop in self._loops)

    def set_faults(self, faults: Faults) -> None:
        """From now on this goes wrong, and nothing else."""
        self.faults.current = faults

    def adapter_of(self, model: str | None) -> Adapter | None:
        """The adapter that a model name stands for; None is the base model. Refused (404)."""
        names = self.options.model_names
        if model is None or model in names:
            return None
        if model in self.adapters:
            return self.adapters[model]
        valid = ", ".join([*names, *self.adapters])
        raise Refused(
            404,
            f"The model `{model}` does not exist. Valid aliases: {valid}.",
            "NotFoundError",
            "model",
        )

    def core_for(self, wanted: str | None) -> EngineCore:
        """The rank that a client asked for, else the least loaded one."""
        count = len(self.ranks)
        if not self.alive:
            raise Refused(500, "EngineCore encountered an issue.", "InternalServerError")
        if wanted is not None and wanted.lstrip("-").isdigit():
            if not 0 <= int(wanted) < count:
                raise Refused(400, f"data_parallel_rank {wanted} is out of range [0, {count}).")
            core = self.ranks[int(wanted)].core
        else:
            core = min((rank.core for rank in self.ranks), key=lambda core: core.load)
        limit = self.options.max_num_queued_reqs
        if limit is not None and core.waiting >= limit:
            raise Refused(
                503,
                "The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
                "Service Unavailable",
            )
        return core

    async def encode(self, text: str) -> "array[int]":
        """Token ids of a text."""
        if len(text) > _SLOW_TEXT:
            return await asyncio.to_thread(self.tokenizer.encode, text)
        return self.tokenizer.encode(text)

    def ending(self, ask: Ask, prompt_tokens: int) -> Ending:
        """When answers to this prompt end. Refused if the context is too short."""
        stops = set(ask.stop_token_ids or ())
        if not ask.ignore_eos:
            stops.add(self.tokenizer.end_token)
        limit = answer_limit(ask, prompt_tokens, self.sizes.max_model_len)
        return Ending(limit, min(ask.min_tokens, limit), frozenset(stops))

    def sequence(
        self,
        ask: Ask,
        prompt: "array[int]",
        identity: Identity,
        number: int,
        listener: Listener,
        *,
        continues: bool,
    ) -> Sequence:
        """The sequence of one choice; `number` tells choices of a prompt apart."""
        seed = ((ask.seed or 0) * 1_000_003 + number) % _BITS
        story = self.author.begin(
            prompt,
            seed,
            at_least=None if ask.ignore_eos else ask.min_tokens,
            continues=continues,
        )
        return Sequence(
            tokens=prompt[:],
            chain=Chain(self.sizes.block_size, self._root, identity),
            identity=identity,
            ending=self.ending(ask, len(prompt)),
            answer=story,
            listener=listener,
        )

    def update_gauges(self) -> None:
        """Before a scrape: look at what every core does."""
        self.collector.gauges = [
            CoreGauges(
                len(rank.core.scheduler.running),
                rank.core.waiting,
                rank.core.pool.used_count / rank.core.pool.capacity,
            )
            for rank in self.ranks
        ]

    def _start_loops(self) -> None:
        self._loops = [asyncio.create_task(rank.core.run()) for rank in self.ranks]
        for rank, loop in zip(self.ranks, self._loops, strict=True):
            loop.add_done_callback(partial(_bury, rank.core))

    async def _stop_loops(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []

    def _build_rank(self, number: int, clock: Clock) -> Rank:
        options, sizes = self.options, self.sizes
        settings = PublisherSettings(
            host=options.host,
            events_port=options.events_port and options.events_port + number,
            replay_port=options.replay_port and options.replay_port + number,
            topic=options.topic,
            buffer_steps=options.buffer_steps,
            form=options.event_form,
        )
        limits = CoreLimits(
            block_size=sizes.block_size,
            num_blocks=sizes.num_blocks,
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            speed_up=options.speed_up,
        )
        publisher = Publisher(settings, number, self.faults)
        metrics = CoreMetrics()
        return Rank(EngineCore(limits, self.profile, publisher, metrics, clock), publisher, metrics)

    def _cache_config(self) -> dict[str, str]:
        # With several ranks vLLM sums the blocks but not the tokens.
        blocks = self.sizes.num_blocks * self.options.data_parallel_size
        return {
            "block_size": str(self.sizes.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "kv_cache_size_tokens": str(self.sizes.kv_tokens),
            "num_gpu_blocks": str(blocks),
            "prefix_caching_hash_algo": "xxhash",
            "sliding_window": "None",
        }


def _bury(core: EngineCore, loop: "asyncio.Task[None]") -> None:
    """A core whose loop failed takes its clients along: nobody must wait for ever."""
    if not loop.cancelled() and (exc := loop.exception()) is not None:
        log.error("an engine core died", exc_info=exc)
        core.restart(keep_cache=False)
