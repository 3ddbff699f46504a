"""One engine core: plan a step, let its modelled time pass, then say what it did.

Everything that changes the cache or the queues happens between steps, so what runs is what was
planned: new sequences, aborts, resets.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from router.blocks import AllBlocksCleared, BlockRemoved, BlockStored, Event
from workers.engine.clock import Clock
from workers.engine.metrics import CoreMetrics
from workers.engine.pool import BlockPool
from workers.engine.profile import Profile
from workers.engine.scheduler import Scheduler, Step, Stored
from workers.engine.sequence import Finish
from workers.engine.sequence import Sequence as Seq

MAX_LAG_S: Final = 0.25
"""A loop that is later than this gives up catching up: the machine is too slow for the profile."""

log = logging.getLogger(__name__)


class EventSink(Protocol):
    """Where a core's events go."""

    def publish(self, events: Sequence[Event]) -> None:
        """Send one step's events as one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """Sizes of one core. `speed_up`: modelled seconds per second of the clock."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    speed_up: float = 1.0


class EngineCore:
    """One data-parallel rank: its cache, its queues, its loop."""

    def __init__(
        self,
        limits: CoreLimits,
        profile: Profile,
        events: EventSink,
        metrics: CoreMetrics,
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._profile = profile
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._arrivals: deque[Seq] = deque()
        self._orders: deque[Callable[[], object]] = deque()
        self._wake = asyncio.Event()
        self._pending: list[Event] = []
        self._keys: dict[int, int] = {}
        self.pool = BlockPool(limits.num_blocks)
        self.scheduler = self._new_scheduler()

    @property
    def load(self) -> int:
        """Sequences here, waiting or running."""
        return self.waiting + len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences that no step has taken up yet (or that were preempted)."""
        return len(self._arrivals) + len(self.scheduler.waiting)

    def submit(self, sequence: Seq) -> None:
        """Queue a sequence; its listener hears the rest."""
        sequence.moments.arrived = self._clock.now()
        self._arrivals.append(sequence)
        self._wake.set()

    def abort(self, sequence: Seq) -> None:
        """Stop a sequence at the next step boundary. One that has ended stays as it is."""
        self._order(lambda: self._abort(sequence))

    def abort_all(self) -> None:
        """Stop everything at the next step boundary and tell the listeners."""
        self._order(self._abort_all)

    async def reset_cache(self) -> bool:
        """Forget the cache; False while blocks are in use. Announced with the next step's events,
        as in vLLM: until then subscribers believe the old state."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def reset() -> None:
            if not done.cancelled():
                done.set_result(self._reset())

        self._order(reset)
        return await done

    def restart(self, *, keep_cache: bool) -> None:
        """A new life: nothing runs, nothing is pending; the cache is empty unless kept.

        The loop must have been stopped; a step that it was in never happened.
        """
        self._abort_all()
        self._pending.clear()
        self.pool.end_step()
        self.pool.take_evicted()
        if not keep_cache:
            self._keys.clear()
            self.pool = BlockPool(self._limits.num_blocks)
        self.scheduler = self._new_scheduler()

    def cached(self) -> dict[int, int]:
        """The router's own hash of each cached prefix → copies of its last block."""
        by_key: dict[int, int] = {}
        for value, count in self.pool.copies().items():
            by_key[self._keys[value]] = count
        return by_key

    async def run(self) -> None:
        """Step for ever. Deadlines are absolute, so late wake-ups do not add up."""
        start = self._clock.now()
        while True:
            self._obey()
            start = await self._rest(start)
            self._admit(start)
            step = self.scheduler.plan()
            if not step.shares:
                raise RuntimeError("nothing fits: a sequence is larger than the whole cache")
            self._metrics.count_step(step, start)
            start += self._profile.duration_s(step) / self._limits.speed_up
            await self._clock.sleep_until(start)
            self._finish(step)

    async def _rest(self, start: float) -> float:
        """Wait until there is something to do; returns when the next step begins."""
        host_s = self._profile.host_ms / 1000.0 / self._limits.speed_up
        while not self.scheduler.has_work:
            self._obey()
            if self._arrivals:
                ready = self._arrivals[0].moments.arrived + host_s
                if ready <= self._clock.now():
                    return max(start, ready)
                await self._clock.sleep_until(ready)
                continue
            self._wake.clear()
            await self._wake.wait()
        lag = self._clock.now() - start
        if lag > MAX_LAG_S:
            self._metrics.lag_s += lag
            log.warning("%.0f ms behind the profile: this machine is too slow for it", lag * 1e3)
            return self._clock.now()
        return start

    def _admit(self, start: float) -> None:
        host_s = self._profile.host_ms / 1000.0 / self._limits.speed_up
        while self._arrivals and self._arrivals[0].moments.arrived + host_s <= start:
            self.scheduler.add(self._arrivals.popleft())

    def _finish(self, step: Step) -> None:
        now = self._clock.now()
        stored = self.scheduler.commit(step)
        for share in step.shares:
            if not share.sequence.uncomputed:
                self._sample(share.sequence, now)
        self._publish(stored)

    def _sample(self, sequence: Seq, now: float) -> None:
        token = sequence.sample()
        finish = sequence.ending.reason(token, sequence.answered)
        finish = sequence.listener.token(token, finish)
        self._metrics.count_token(sequence, now)
        if finish is not None:
            sequence.finish = finish
            self.scheduler.remove(sequence)
            self._metrics.count_finish(sequence, now)

    def _publish(self, stored: list[Stored]) -> None:
        """Removals precede what took their place; one stored event per sequence and step."""
        events = self._pending
        self._pending = []
        for value in self.pool.take_evicted():
            events.append(BlockRemoved((value,), medium="GPU", group_idx=0))
            if not self.pool.holds(value):
                self._keys.pop(value, None)
        events += [self._stored_event(change) for change in stored]
        if events:
            self._events.publish(events)

    def _stored_event(self, change: Stored) -> BlockStored:
        sequence, size = change.sequence, self._limits.block_size
        chain, adapter = sequence.chain, sequence.identity.adapter
        hashes = tuple(chain.engine[change.first : change.last])
        self._keys.update(zip(hashes, chain.keys[change.first : change.last], strict=True))
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=chain.engine[change.first - 1] if change.first else None,
            token_ids=sequence.tokens[change.first * size : change.last * size].tolist(),
            block_size=size,
            lora_id=adapter.number if adapter else None,
            medium="GPU",
            lora_name=adapter.name if adapter else None,
            extra_keys=sequence.identity.extra_keys(change.first, change.last - change.first),
            group_idx=0,
            kv_cache_spec_kind="full_attention",
            session_id=sequence.identity.session,
        )

    def _order(self, order: Callable[[], object]) -> None:
        self._orders.append(order)
        self._wake.set()

    def _obey(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _abort(self, sequence: Seq) -> None:
        if sequence.finish is not None:
            return
        sequence.finish = Finish.ABORT
        if sequence in self._arrivals:
            self._arrivals.remove(sequence)
        self.scheduler.remove(sequence)
        self._metrics.count_finish(sequence, self._clock.now())
        sequence.listener.aborted()

    def _abort_all(self) -> None:
        for sequence in [*self.scheduler.running, *self.scheduler.waiting, *self._arrivals]:
            self._abort(sequence)

    def _reset(self) -> bool:
        if not self.pool.reset():
            return False
        self._keys.clear()
        self._pending.append(AllBlocksCleared())
        return True

    def _new_scheduler(self) -> Scheduler:
        limits = self._limits
        return Scheduler(
            self.pool, limits.block_size, limits.max_num_seqs, limits.max_num_batched_tokens
        )
