"""Builds every part from the configuration, and closes them in reverse."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from random import Random

from router import log, parts, routing_parts, shared_parts
from router.central import CentralIndex
from router.collectors import ReplicaSample
from router.config import probe_times, to_replica
from router.discover import discover
from router.events.keeper import Watching
from router.events.sources import DialSources
from router.index.answers import NO_ANSWERS
from router.index.reservations import Reservations
from router.index.tiers import TieredIndex
from router.knowledge import Knowledge, Means, gather_from_central, gather_own, is_central
from router.membership import Membership
from router.metrics import Metrics
from router.newcomers import Newcomers
from router.planner import Planner
from router.proxy.forwarder import Forwarder
from router.record import Accounts
from router.replicas import Member, Pool
from router.replicas.breaker import Position
from router.replicas.discovery import StaticDiscovery
from router.replicas.health import Prober
from router.routing import POLICIES, Chooser, Speeds
from router.routing.ramp import Ramp
from router.settings import RouterConfig
from router.shared import Owners, Peers
from router.supervise import Supervisor
from router.tenants import Gate
from router.tls import tls_to_replicas
from router.tokens import (
    Reason,
    Tokenizers,
)
from router.tracing import Tracer


@dataclass(slots=True)
class Readiness:
    """Whether new connections are wanted. After `deadline` they are though an index still learns:
    late is better than never."""

    deadline: float
    is_draining: bool = False

    def withdraw(self) -> None:
        self.is_draining = True


@dataclass(slots=True)
class Runtime:
    """The one owner. Handlers read it; nothing replaces a part after `open`."""

    clock: Callable[[], float]
    pool: Pool
    index: TieredIndex | CentralIndex
    reservations: Reservations
    speeds: Speeds
    tokens: Tokenizers
    gate: Gate
    planner: Planner
    forwarder: Forwarder
    keeper: Watching
    knowledge: Knowledge
    peers: Peers
    owners: Owners
    newcomers: Newcomers
    prober: Prober
    metrics: Metrics
    accounts: Accounts
    tracer: Tracer
    readiness: Readiness
    supervisor: Supervisor
    named: StaticDiscovery
    membership: Membership
    policy_name: str
    session_headers: tuple[str, ...]
    decision_headers: bool
    tls: ssl.SSLContext
    """Towards https replicas."""

    @classmethod
    @asynccontextmanager
    async def open(cls, config: RouterConfig) -> AsyncIterator[Runtime]:
        """Build, start the background tasks, and on leaving end and close all."""
        async with AsyncExitStack() as stack:
            runtime = await _build(config, stack)
            runtime.supervisor.run("judge", runtime.tokens.judge)
            if config.tokens.fetch:
                fetcher = parts.fetcher(config.tokens, runtime.prober, runtime.tokens)
                runtime.supervisor.run("fetch", fetcher.run)
            runtime.supervisor.run("newcomers", runtime.newcomers.work)
            runtime.peers.start(runtime.supervisor.run)
            runtime.supervisor.run("discovery", runtime.membership.follow)
            told = (runtime.keeper, runtime.prober, runtime.reservations.in_flight)
            runtime.supervisor.run("silence", parts.silence(config.health, *told).watch)
            yield runtime

    @property
    def crashed(self) -> asyncio.Future[None]:
        return self.supervisor.crashed

    def reload(self, config: RouterConfig) -> None:
        """Take over what can change under way: the replicas. Requests in flight go on."""
        self.named.replace([to_replica(settings) for settings in config.replicas])

    def drain(self) -> None:
        """New connections are not wanted any more, and who waits for a replica is sent now."""
        self.readiness.withdraw()
        self.planner.queue.let_all_go()

    def suspect(self, replica_id: str, error: str) -> None:
        """Traffic found a replica unreachable: out of the choice until a probe succeeds."""
        self.pool.mark_down(replica_id, error)
        self.prober.hurry(replica_id)
        self.knowledge.suspect(replica_id)

    def in_flight(self) -> int:
        """Requests at replicas, and those that wait for one."""
        sent = sum(self.reservations.in_flight(member.id) for member in self.pool)
        return sent + self.planner.queue.length

    def obstacle(self) -> str | None:
        """Why a request sent now would be served badly, or None."""
        if self.readiness.is_draining:
            return "draining"
        healthy = [member for member in self.pool if member.is_healthy]
        if not healthy:
            return "no replica is up"
        if self.clock() > self.readiness.deadline:
            return None
        waiting = [m.id for m in self.pool if self._is_learning(m)]
        return f"learning what {', '.join(waiting)} hold" if waiting else None

    def samples(self) -> Iterator[ReplicaSample]:
        """Each replica as `/metrics` shows it; a central index counts its frames itself."""
        is_own = isinstance(self.index, TieredIndex)
        held = self.index.replicas()
        for member in self.pool:
            watched = self.keeper.of(member.id)
            yield ReplicaSample(
                replica=member.id,
                is_healthy=member.is_healthy,
                is_breaker_open=member.breaker.position is not Position.CLOSED,
                in_flight=self.reservations.in_flight(member.id),
                queued_tokens=self.reservations.own_load(member.id).queued_tokens,
                index_blocks=held.get(member.id, 0),
                trust=watched.trust.trust,
                trust_reason=watched.trust.reason,
                frames=watched.counters.frames if is_own else None,
                gaps=watched.counters.gaps,
                resyncs=watched.counters.replays,
                share=self.planner.chooser.ramp.share(member.id, self.clock()),
            )

    def _is_learning(self, member: Member) -> bool:
        is_first_probe = not member.is_healthy and member.last_error == "not probed yet"
        return is_first_probe or (member.is_healthy and self.keeper.is_learning(member.id))

    def learn_cache(self, member: Member) -> None:
        """How large a replica's cache is: its engine was asked, or its settings say."""
        if self.pool.get(member.id) is member:
            self.planner.chooser.cache_tokens[member.id] = member.cache_tokens

    def forget(self, replica_id: str) -> None:
        """It left."""
        self.index.forget(replica_id)
        self.planner.chooser.forget(replica_id)
        self.planner.shadows.forget(replica_id)
        self.newcomers.forget(replica_id)


async def _build(config: RouterConfig, stack: AsyncExitStack) -> Runtime:
    clock, rng = time.monotonic, Random()
    tls = tls_to_replicas(config.forward.tls_ca, config.forward.tls_cert)
    session = await stack.enter_async_context(parts.session(tls, once=False))
    probing = await stack.enter_async_context(parts.session(tls, once=True))
    forwarder = parts.forwarder(config, tls, stack)
    dial = DialSources(parts.zmq_context(stack), session, parts.dial_times(config.events))
    pool = Pool(clock, breaker_times=parts.breaker_times(config.health))
    siblings = parts.siblings(config.shared, clock, stack)
    reservations, speeds = Reservations(clock, siblings=siblings), Speeds()
    tokens = parts.tokens(config.tokens, session, pool, rng)
    peers = await stack.enter_async_context(parts.peers(config.shared, reservations, clock))
    peers.moved.host, kept = shared_parts.notes(config.shared, pool, stack)
    runtime: Runtime
    metrics = Metrics(
        lambda: runtime.samples(),
        tokens.samples,
        lambda: [replace(peers.sample(), responses=runtime.owners.counts)],
        lambda: routing_parts.shadow_samples(planner.shadows.tallies),
        Reason,
    )
    supervisor = await stack.enter_async_context(
        Supervisor(metrics.count_restart, metrics.know_task)
    )
    means = Means(pool, dial, tokens, supervisor, metrics, rng)
    if is_central(config.index):
        known = gather_from_central(config.index, means)
    else:
        known, _ = await gather_own(config, parts.index(config.index, clock), means, stack)
    planner = routing_parts.planner(
        config,
        pool,
        tokens,
        # it is the source that knows; the chooser is given what that says
        Chooser(
            *(NO_ANSWERS, reservations, speeds, POLICIES[config.routing.policy](rng), clock),
            moved=peers.moved,
            ramp=Ramp(config.routing.ramp_s, speeds.forget),
        ),
        routing_parts.Waits(
            known.source,
            lambda response_id: runtime.owners.find(response_id),
            routing_parts.queue(config.routing, clock, metrics),
        ),
    )
    prober = Prober(
        *(pool, probing, probe_times(config.health), rng),
        on_refused=forwarder.pool.refused,
        on_report=lambda member: runtime.learn_cache(member),
    )
    named = StaticDiscovery([to_replica(settings) for settings in config.replicas])
    runtime = Runtime(
        clock=clock,
        pool=pool,
        index=known.index,
        reservations=reservations,
        speeds=speeds,
        tokens=tokens,
        gate=parts.gate(config, peers, supervisor, metrics),
        planner=planner,
        forwarder=forwarder,
        keeper=known.keeper,
        knowledge=known,
        peers=peers,
        owners=shared_parts.owners(config.shared, peers, kept, supervisor),
        newcomers=routing_parts.newcomers(config, planner, session, metrics),
        prober=prober,
        metrics=metrics,
        accounts=Accounts(clock, (metrics.count_request, log.write_access_line)),
        tracer=parts.tracer(config.log, stack),
        readiness=Readiness(clock() + config.index.restore_timeout_s),
        supervisor=supervisor,
        named=named,
        membership=Membership(
            pool,
            await discover(config.discovery, named, stack),
            supervisor,
            {"health": prober.watch, **known.tasks},
            (lambda member: runtime.learn_cache(member),),
            (lambda replica_id: runtime.forget(replica_id),),
        ),
        policy_name=config.routing.policy,
        session_headers=tuple(name.lower() for name in config.routing.session_headers),
        decision_headers=config.listen.decision_headers,
        tls=tls,
    )
    return runtime
