"""Replicas that are new: what they compute before they take traffic, and how their share grows."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from router.blocks.hashing import TYPE_CODE
from router.replicas import Member, ReplicaId
from router.routing.hot import Beginning, HotBeginnings, NothingHot
from router.routing.ramp import Ramp

log = logging.getLogger(__name__)

FLAP_S: Final = 5.0
"""A replica that is back sooner was never away: engines take longer to start."""
RANK_HEADER: Final = "X-data-parallel-rank"


@dataclass(slots=True)
class Newcomers:
    """`settled_at`: who comes up before is not new, only this router is. `warm_s`: longest time to
    compute the hottest beginnings; `on_warmed`: gets the tokens that a replica computed so."""

    ramp: Ramp
    hot: HotBeginnings | NothingHot
    session: aiohttp.ClientSession
    clock: Callable[[], float]
    settled_at: float
    warm_s: float
    on_warmed: Callable[[int], None] = lambda tokens: None
    _down_since: dict[ReplicaId, float] = field(default_factory=dict)
    _held: dict[ReplicaId, Member] = field(default_factory=dict)
    _arrivals: asyncio.Queue[tuple[Member, list[Beginning]]] = field(default_factory=asyncio.Queue)

    async def work(self) -> None:
        """Warm up whoever comes, several at once, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                member, wanted = await self._arrivals.get()
                group.create_task(self._warm(member, wanted))

    def health_changed(self, member: Member) -> None:
        """A listener of the pool's."""
        now = self.clock()
        if not member.is_healthy:
            self._down_since[member.id] = now
            return
        down_since = self._down_since.pop(member.id, None)
        was_away = down_since is None or now - down_since >= FLAP_S
        if was_away and now >= self.settled_at:
            self._welcome(member)

    def forget(self, replica_id: ReplicaId) -> None:
        """It left the pool."""
        self._down_since.pop(replica_id, None)
        self._held.pop(replica_id, None)
        self.ramp.forget(replica_id)

    def _welcome(self, member: Member) -> None:
        wanted = self.hot.hottest(member.models)
        if not wanted:
            self.ramp.begin(member.id, self.clock())
            return
        self.ramp.hold(member.id)
        self._held[member.id] = member
        self._arrivals.put_nowait((member, wanted))

    async def _warm(self, member: Member, wanted: list[Beginning]) -> None:
        tokens, whole = 0, sum(beginning.length for beginning in wanted)
        try:
            async with asyncio.timeout(self.warm_s):
                for beginning in wanted:
                    await self._compute(member, beginning)
                    tokens += beginning.length
                    if self._held.get(member.id) is member:
                        self.ramp.hold(member.id, tokens / whole)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
            why = str(exc) or "it took too long"
            log.warning("replica %s: warm-up ended after %d tokens: %s", member.id, tokens, why)
        else:
            log.info("replica %s: %d tokens computed before its first request", member.id, tokens)
        self.on_warmed(tokens)
        if self._held.get(member.id) is member:  # it has not left meanwhile
            del self._held[member.id]
            self.ramp.begin(member.id, self.clock())

    async def _compute(self, member: Member, beginning: Beginning) -> None:
        replica = member.replica
        ids = array(TYPE_CODE)
        ids.frombytes(beginning.tokens)
        body: dict[str, Any] = {
            "model": beginning.model,
            "prompt": ids.tolist(),
            "max_tokens": 1,
        }
        if beginning.salt is not None:
            body["cache_salt"] = beginning.salt
        headers = {} if replica.rank is None else {RANK_HEADER: str(replica.rank)}
        url = replica.url + "/v1/completions"
        async with self.session.post(url, json=body, headers=headers) as response:
            await response.read()
            if response.status != 200:
                raise ValueError(f"POST /v1/completions answered {response.status}")
