"""Active probes: is the engine up, and which models does it serve?"""

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from router.errors import OWN_SHORTAGES
from router.replicas.pool import Member, Pool
from router.replicas.replica import Replica
from router.replicas.report import read_report
from router.replicas.times import ProbeTimes

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Prober:
    """Probes one pool's replicas, each by a task of its own.

    `session` must not keep connections: one that is open says nothing about the port.
    """

    pool: Pool
    session: aiohttp.ClientSession
    times: ProbeTimes
    rng: Random = field(default_factory=Random)
    on_refused: Callable[[str], None] = lambda url: None
    """A URL's port refuses: what waits for a reply there waits in vain."""
    on_report: Callable[[Member], None] = lambda member: None
    """A replica was asked what its engine says of itself; see `Member.report`."""
    _wake: dict[str, asyncio.Event] = field(default_factory=dict)
    _doubted: set[str] = field(default_factory=set)

    async def watch(self, member: Member) -> None:
        """Probe a replica for as long as it is in the pool."""
        wake = self._wake[member.id] = asyncio.Event()
        failures = 0
        try:
            while True:
                wake.clear()
                failures = await self._probe(member, failures)
                await self._pause(wake, healthy=member.is_healthy and not failures)
        finally:
            del self._wake[member.id]
            self._doubted.discard(member.id)

    def hurry(self, replica_id: str) -> None:
        """Probe this replica now: traffic has shown that something changed."""
        if (wake := self._wake.get(replica_id)) is not None:
            wake.set()

    def doubt(self, replica_id: str) -> None:
        """Probe this replica now. Something else speaks against it: one failure is enough."""
        if replica_id in self._wake:
            self._doubted.add(replica_id)
            self.hurry(replica_id)

    async def _pause(self, wake: asyncio.Event, *, healthy: bool) -> None:
        mean_s = self.times.interval_s if healthy else self.times.retry_interval_s
        try:
            async with asyncio.timeout(mean_s * self.rng.uniform(0.8, 1.2)):
                await wake.wait()
        except TimeoutError:
            return

    async def _probe(self, member: Member, failures: int) -> int:
        """One probe; returns how many in a row have failed."""
        enough = 1 if member.id in self._doubted else self.times.failures
        try:
            async with asyncio.timeout(self.times.timeout_s):
                await self._ask_health(member.replica)
                models = await self._ask_models(member.replica)
        except aiohttp.ClientConnectorError as exc:
            if exc.errno in OWN_SHORTAGES:
                return failures
            self._out(member, f"cannot connect: {exc.strerror or exc}")
            if exc.errno == errno.ECONNREFUSED:
                self.on_refused(member.replica.url)
            return failures + 1
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
            if failures + 1 >= enough:
                self._out(member, f"{type(exc).__name__}: {exc}" if str(exc) else "timed out")
            return failures + 1
        self._doubted.discard(member.id)
        was_healthy = member.is_healthy
        self.pool.mark_up(member.id, models)
        if not was_healthy:
            log.info("replica %s is up and serves %s", member.id, ", ".join(sorted(member.models)))
            if (declared := member.replica.model) and declared not in member.models:
                log.warning(
                    "replica %s is labelled %s, which it doesn't serve", member.id, declared
                )
        await self._ask_report(member)
        return 0

    def _out(self, member: Member, error: str) -> None:
        if member.is_healthy or member.last_error != error:
            log.warning("replica %s is down: %s", member.id, error)
        self.pool.mark_down(member.id, error)

    async def _ask_health(self, replica: Replica) -> None:
        async with self.session.get(replica.url + "/health") as response:
            if response.status >= 400:
                raise ValueError(f"GET /health answered {response.status}")

    async def _ask_report(self, member: Member) -> None:
        """An engine without metrics, or with slow ones, is no worse a replica."""
        url = member.replica.url + "/metrics"
        with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            async with asyncio.timeout(self.times.timeout_s), self.session.get(url) as response:
                if response.status == 200:
                    member.report = read_report(await response.text(), member.replica.rank or 0)
        self.on_report(member)

    async def _ask_models(self, replica: Replica) -> dict[str, dict[str, Any]]:
        async with self.session.get(replica.url + "/v1/models") as response:
            if 400 <= response.status < 500 and replica.model:
                return {}  # it has no list, or not for us: then what its labels say counts
            if response.status >= 400:
                raise ValueError(f"GET /v1/models answered {response.status}")
            return _rows(await response.json(content_type=None))


def _rows(body: Any) -> dict[str, dict[str, Any]]:
    try:
        return {row["id"]: row for row in body["data"]}
    except (KeyError, TypeError) as exc:
        raise ValueError("GET /v1/models answered no list of models") from exc
