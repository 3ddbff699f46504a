"""Follow a replica's events for as long as it is up; forget what it held when it goes down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.blocks import BlockHash
from router.events.history import CacheShape, IndexOfGuesses, RoutedHistory
from router.events.ingest import NOT_FOLLOWED, follow, refute
from router.events.snapshot import IndexWithDumps, ReplicaSnapshot
from router.events.sources import Sources
from router.events.standing import SLICE_BLOCKS, IngestCounters, Standing
from router.events.trust import NOT_ASKED, ReplicaTrust, Trust, TrustChange
from router.replicas import Member, Replica

NO_EVENTS: Final = (
    "it publishes no KV events; start vLLM with --kv-events-config "
    """'{"enable_kv_cache_events": true, "publisher": "zmq"}'"""
)
DOWN: Final = "the replica is down"
_TURNS_FOR_A_FRAME: Final = 1000
_WITHOUT_EVENTS: Final = frozenset((Trust.BLIND, Trust.APPROXIMATE))
log = logging.getLogger(__name__)


class Watching(Protocol):
    """What can be known of replicas' event streams, whoever follows them, and what is told back."""

    restored: dict[str, int]

    def of(self, replica_id: str) -> Watched:
        """A replica's state; a new one is BLIND."""
        ...

    def is_learning(self, replica_id: str) -> bool:
        """Is it too early to say how much is known of a replica that is up?"""
        ...

    def served(self, replica_id: str, prefix: Sequence[BlockHash], hit_tokens: int | None) -> None:
        """A prompt was computed by a replica; None: it does not say what it reused."""
        ...

    def observe_hit(
        self, replica_id: str, predicted_tokens: int, hit_tokens: int, age_s: float
    ) -> None:
        """What was predicted, at most `age_s` ago, and what the engine reported."""
        ...

    async def snapshot(self) -> list[ReplicaSnapshot]:
        """Each followed replica's blocks, at the end of a frame; none if others follow them."""
        ...


class KeptIndex(IndexWithDumps, IndexOfGuesses, Protocol):
    """An index that can be copied, and told of guesses."""


async def _usual_shape(replica: Replica) -> CacheShape:
    return CacheShape()


@dataclass(slots=True)
class Watched:
    """What is known of one replica's event stream."""

    trust: ReplicaTrust
    counters: IngestCounters = field(default_factory=IngestCounters)
    health_changed: asyncio.Event = field(default_factory=asyncio.Event)
    standing: Standing | None = None
    """Where its stream stands, while it is followed."""
    may_guess: bool = False
    history: RoutedHistory | None = None
    """What was sent there, while there are no events."""


@dataclass(slots=True)
class Keeper:
    """One per router: keeps every replica's stream followed, each by a task of its own."""

    index: KeptIndex
    sources: Sources
    shape_of: Callable[[Replica], Awaitable[CacheShape]] = _usual_shape
    """How big a replica's cache is, for one that has no events."""
    seeds: dict[str, ReplicaSnapshot] = field(default_factory=dict)
    """What was known before this router started; each is used once."""
    restored: dict[str, int] = field(default_factory=dict)
    """Replica → blocks that came from such a snapshot."""
    slice_blocks: int = SLICE_BLOCKS
    """Blocks applied before other tasks get a turn."""
    clock: Callable[[], float] = time.monotonic
    """Seconds. By it the age of a prediction is told."""
    _watched: dict[str, Watched] = field(default_factory=dict)

    def of(self, replica_id: str) -> Watched:
        """A replica's state; a new replica is BLIND."""
        if replica_id not in self._watched:
            trust = ReplicaTrust(replica_id, on_change=self._trust_changed, clock=self.clock)
            self._watched[replica_id] = Watched(trust)
        return self._watched[replica_id]

    def watched_ids(self) -> list[str]:
        """Replicas that have a state."""
        return list(self._watched)

    def health_changed(self, member: Member) -> None:
        """To be told to by the pool."""
        self.of(member.id).health_changed.set()

    async def keep(self, member: Member) -> None:
        """Follow `member` whenever it is up, until cancelled; then drop its state."""
        watched = self.of(member.id)
        try:
            while True:
                if member.is_healthy:
                    watched.may_guess = True
                    await _until(watched.health_changed, self._follow(member.replica, watched))
                    watched.may_guess = False
                watched.trust.set(Trust.BLIND, DOWN)
                await watched.health_changed.wait()
                watched.health_changed.clear()
        finally:
            self._watched.pop(member.id, None)

    def is_learning(self, replica_id: str) -> bool:
        """Is it too early to say how much is known of a replica that is up?"""
        trust = self.of(replica_id).trust
        is_unasked = trust.trust is Trust.BLIND and trust.reason in (NOT_ASKED, DOWN, NOT_FOLLOWED)
        return is_unasked or trust.trust is Trust.CATCHING_UP

    def served(self, replica_id: str, prefix: Sequence[BlockHash], hit_tokens: int | None) -> None:
        """A prompt was computed by a replica. Remembered only where events don't say it better."""
        watched = self.of(replica_id)
        if watched.trust.trust not in _WITHOUT_EVENTS or not watched.may_guess:
            return
        sizes = self.index.block_sizes(replica_id)
        if not sizes:
            return
        size = min(sizes)
        if watched.history is None:
            shape = CacheShape(block_size=size)
            watched.history = RoutedHistory(self.index, replica_id, shape)
            reason = f"{watched.trust.reason}; known is what was sent there"
            watched.trust.set(Trust.APPROXIMATE, reason)
        watched.history.served(prefix, None if hit_tokens is None else hit_tokens // size)

    def observe_hit(
        self, replica_id: str, predicted_tokens: int, hit_tokens: int, age_s: float
    ) -> None:
        """Compare a prediction with what the engine reported; too many misses clear the index,
        and the past is asked for anew."""
        size = min(self.index.block_sizes(replica_id), default=0)
        watched = self.of(replica_id)
        if size and watched.trust.observe_hit(predicted_tokens // size, hit_tokens // size, age_s):
            self.index.clear(replica_id)
            if watched.standing is not None:
                refute(watched.trust, watched.standing)

    def _trust_changed(self, change: TrustChange) -> None:
        why = f", {change.reason}" if change.reason else ""
        log.info("replica %s: %s%s", change.replica_id, change.trust, why)
        watched = self._watched.get(change.replica_id)
        if watched is not None and watched.history and change.trust not in _WITHOUT_EVENTS:
            watched.history.clear()
            watched.history = None

    async def snapshot(self, max_blocks: int | None = None) -> list[ReplicaSnapshot]:
        """Each followed replica's blocks, at the end of a frame.

        `max_blocks`: of all together; replicas that do not fit are left out whole, for what is
        known of one must be all that there was.
        """
        found: list[ReplicaSnapshot] = []
        held = self.index.replicas()
        left = max_blocks if max_blocks is not None else sum(held.values())
        for replica_id, watched in list(self._watched.items()):
            if held.get(replica_id, 0) > left:
                continue
            if (snapshot := await self._copy(replica_id, watched)) is not None:
                found.append(snapshot)
                left -= snapshot.held.blocks
        return found

    async def _copy(self, replica_id: str, watched: Watched) -> ReplicaSnapshot | None:
        """With turns for others. None: it is not followed, or gets no rest."""
        for _ in range(_TURNS_FOR_A_FRAME):
            standing = watched.standing
            position = standing.tracker.position if standing is not None else None
            if standing is None or position is None:
                return None
            if standing.is_midway:
                await asyncio.sleep(0)
                continue
            doubt, known_from = standing.doubt, standing.known_from
            must_relearn = standing.must_relearn
            with self.index.copy(replica_id) as copy:
                while copy.step():  # noqa: ASYNC110  it is we who go on
                    await asyncio.sleep(0)
            if not copy.is_void:
                held = await asyncio.to_thread(copy.dump)
                return ReplicaSnapshot(replica_id, *position, held, doubt, known_from, must_relearn)
        return None

    def _begin(self, replica_id: str, trust: ReplicaTrust) -> Standing:
        """From what another router, or an earlier one, knew; else from nothing."""
        standing = Standing(slice_blocks=self.slice_blocks)
        seed = self.seeds.pop(replica_id, None)
        if seed is not None:
            self.index.load(replica_id, seed.held)
            standing.tracker.stand_at(seed.seq, seed.digest)
            standing.doubt_all(seed.doubt, seed.known_from, may_ask=seed.must_relearn)
            trust.begin_epoch()
            self.restored[replica_id] = seed.held.blocks
        return standing

    async def _follow(self, replica: Replica, watched: Watched) -> None:
        source = await self.sources.open(replica)
        if source is not None:
            watched.standing = self._begin(replica.id, watched.trust)
            try:
                await follow(
                    replica.id,
                    source,
                    self.index,
                    watched.trust,
                    watched.counters,
                    standing=watched.standing,
                )
            finally:
                watched.standing = None
        else:
            watched.history = RoutedHistory(self.index, replica.id, await self.shape_of(replica))
            watched.trust.set(Trust.APPROXIMATE, NO_EVENTS)
            try:
                await asyncio.Event().wait()
            finally:
                watched.history = None
                self.index.forget(replica.id)


async def _until(event: asyncio.Event, work: Awaitable[None]) -> None:
    """Await `work`, but end it when the event is set. Raises what `work` raises."""
    event.clear()
    task = asyncio.ensure_future(work)
    stop = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.wait([task, stop])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
