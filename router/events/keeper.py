"""Follow a replica's events for as long as it is up; forget what it held when it goes down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from router.events.ingest import IngestCounters, follow
from router.events.sources import Sources
from router.events.trust import ReplicaTrust, Trust
from router.index.protocol import PrefixIndex
from router.replicas import Member, Replica


@dataclass(slots=True)
class Watched:
    """What is known of one replica's event stream."""

    trust: ReplicaTrust
    counters: IngestCounters = field(default_factory=IngestCounters)
    health_changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Keeper:
    """One per router: keeps every replica's stream followed, each by a task of its own."""

    index: PrefixIndex
    sources: Sources
    _watched: dict[str, Watched] = field(default_factory=dict)

    def of(self, replica_id: str) -> Watched:
        """A replica's state; a new replica is BLIND."""
        if replica_id not in self._watched:
            self._watched[replica_id] = Watched(ReplicaTrust(replica_id))
        return self._watched[replica_id]

    def health_changed(self, member: Member) -> None:
        """To be told to by the pool."""
        self.of(member.id).health_changed.set()

    async def keep(self, member: Member) -> None:
        """Follow `member` whenever it is up, until cancelled; then drop its state."""
        watched = self.of(member.id)
        try:
            while True:
                if member.is_healthy:
                    await _until(watched.health_changed, self._follow(member.replica, watched))
                watched.trust.set(Trust.BLIND, "the replica is down")
                await watched.health_changed.wait()
                watched.health_changed.clear()
        finally:
            self._watched.pop(member.id, None)

    async def _follow(self, replica: Replica, watched: Watched) -> None:
        source = await self.sources.open(replica)
        if source is not None:
            await follow(replica.id, source, self.index, watched.trust, watched.counters)
        else:
            watched.trust.set(Trust.BLIND, "it publishes no KV events")
            await asyncio.Event().wait()


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
