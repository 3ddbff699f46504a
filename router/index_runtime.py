"""Builds the central index's process from the configuration, and closes it in reverse."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from router import parts
from router.central import CAN_SHARE, Address, Desk, Place, SharedMemory
from router.collectors import ReplicaSample
from router.config import probe_times, to_replica
from router.discover import discover
from router.events.keeper import Keeper
from router.events.sources import DialSources
from router.index.tiers import TieredIndex
from router.index_settings import IndexSettings
from router.knowledge import Means, address_of, gather_own, token_of
from router.membership import Membership
from router.metrics import Metrics
from router.replicas import Pool
from router.replicas.breaker import Position
from router.replicas.discovery import StaticDiscovery
from router.replicas.health import Prober
from router.settings import RouterConfig
from router.supervise import Supervisor
from router.tls import tls_to_replicas

SLICE_BLOCKS: Final = 128
"""Blocks applied between two looks at the routers' questions: about 0.15 ms."""


@dataclass(slots=True)
class IndexRuntime:
    """The one owner of the central index's parts."""

    clock: Callable[[], float]
    pool: Pool
    index: TieredIndex
    keeper: Keeper
    desk: Desk
    metrics: Metrics
    supervisor: Supervisor
    named: StaticDiscovery
    address: Address
    ready_by: float

    @classmethod
    @asynccontextmanager
    async def open(cls, config: RouterConfig) -> AsyncIterator[IndexRuntime]:
        """Build, listen, follow; on leaving end and close all. ConfigError, OSError."""
        async with AsyncExitStack() as stack:
            yield await _build(config, stack)

    def obstacle(self) -> str | None:
        """Why routers should still wait with their first questions, or None."""
        if self.clock() > self.ready_by:
            return None
        learning = [
            m.id
            for m in self.pool
            if (m.is_healthy and self.keeper.is_learning(m.id))
            or (not m.is_healthy and m.last_error == "not probed yet")
        ]
        return f"learning what {', '.join(learning)} hold" if learning else None

    def reload(self, config: RouterConfig) -> None:
        """Take over what can change under way: the replicas."""
        self.named.replace([to_replica(settings) for settings in config.replicas])

    def samples(self) -> Iterator[ReplicaSample]:
        """Each replica as `/metrics` shows it."""
        held = self.index.replicas()
        for member in self.pool:
            watched = self.keeper.of(member.id)
            yield ReplicaSample(
                replica=member.id,
                is_healthy=member.is_healthy,
                is_breaker_open=member.breaker.position is not Position.CLOSED,
                in_flight=0,
                queued_tokens=0,
                index_blocks=held.get(member.id, 0),
                trust=watched.trust.trust,
                trust_reason=watched.trust.reason,
                frames=watched.counters.frames,
                gaps=watched.counters.gaps,
                resyncs=watched.counters.replays,
            )


async def _build(config: RouterConfig, stack: AsyncExitStack) -> IndexRuntime:
    clock, rng = time.monotonic, Random()
    address, token = address_of(config.index), token_of(config.index)
    tls = tls_to_replicas(config.forward.tls_ca, config.forward.tls_cert)
    session = await stack.enter_async_context(parts.session(tls, once=False))
    probing = await stack.enter_async_context(parts.session(tls, once=True))
    dial = DialSources(parts.zmq_context(stack), session, parts.dial_times(config.events))
    pool, (index, place) = Pool(clock), _index(config.index, address, clock, stack)
    tokens = parts.tokens(config.tokens, session, pool, rng)
    runtime: IndexRuntime
    metrics = Metrics(lambda: runtime.samples())
    supervisor = await stack.enter_async_context(Supervisor(metrics.count_restart))
    means = Means(pool, dial, tokens, supervisor, metrics, rng)
    known, keeper = await gather_own(config, index, means, stack)
    keeper.slice_blocks = SLICE_BLOCKS
    prober = Prober(pool, probing, probe_times(config.health), rng)
    # nothing is in flight here: only a stream that is cut brings a probe forward
    silence = parts.silence(config.health, keeper, prober, lambda replica_id: 0)
    supervisor.run("silence", silence.watch)
    desk = Desk(index, keeper, token, prober.hurry, place)
    metrics.watch_desk(lambda: desk.routers, lambda: desk.counters.questions)
    supervisor.run("tell", desk.tell)
    named = StaticDiscovery([to_replica(settings) for settings in config.replicas])
    membership = Membership(
        pool,
        await discover(config.discovery, named, stack),
        supervisor,
        {"health": prober.watch, **known.tasks},
        on_leave=(index.forget,),
    )
    supervisor.run("discovery", membership.follow)
    bound = await stack.enter_async_context(desk.open(address))
    runtime = IndexRuntime(
        clock=clock,
        pool=pool,
        index=index,
        keeper=keeper,
        desk=desk,
        metrics=metrics,
        supervisor=supervisor,
        named=named,
        address=bound,
        ready_by=clock() + config.index.restore_timeout_s,
    )
    return runtime


def _index(
    settings: IndexSettings, address: Address, clock: Callable[[], float], stack: AsyncExitStack
) -> tuple[TieredIndex, Place | None]:
    """In memory that routers of this host may read, and where. What lies in slower tiers must be
    asked for."""
    if not address.path or not CAN_SHARE or settings.tiers:
        return parts.index(settings, clock), None
    memory = SharedMemory()
    stack.callback(memory.close)
    return parts.index(settings, clock, memory.allocate), memory.place
