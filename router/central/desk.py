"""Where routers ask: the central index's side of their connections."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, cast

from router.blocks import Hashes
from router.central import wire
from router.central.address import Address
from router.central.memory import Place
from router.central.wire import BadFrame, Found, Kind, ReplicaState, StateNews
from router.events.keeper import Keeper
from router.events.trust import Trust
from router.index.tiers import TieredIndex
from router.replicas import ReplicaId

log = logging.getLogger(__name__)

BACKLOG: Final = 512
JOIN_S: Final = 5.0
"""Longest time for a router to show that it may ask."""
TELL_EVERY_S: Final = 0.1
BEAT_EVERY_S: Final = 0.5
UNREAD_BYTES: Final = 8 * 2**20
"""What waits for a router that does not read, before it is given up."""
_NO_EVENTS: Final = frozenset((Trust.BLIND, Trust.APPROXIMATE))


@dataclass(slots=True)
class DeskCounters:
    """All only grow."""

    questions: int = 0
    refused: int = 0
    """Connections that ended because of what came from them."""


@dataclass(slots=True)
class Desk:
    """Answers routers from one index, and tells them what it knows of replicas.

    A question is answered at once, in the order of arrival, between two slices of events.
    `hurry`: a router can't reach this replica. `memory`: where routers of this host may read
    the index themselves.
    """

    index: TieredIndex
    keeper: Keeper
    token: bytes = b""
    hurry: Callable[[ReplicaId], None] = lambda replica_id: None
    memory: Place | None = None
    counters: DeskCounters = field(default_factory=DeskCounters)
    _joined: set[_Visitor] = field(default_factory=set)
    _told: dict[ReplicaId, ReplicaState] = field(default_factory=dict)

    @property
    def routers(self) -> int:
        """Those that may ask now."""
        return len(self._joined)

    @asynccontextmanager
    async def open(self, address: Address) -> AsyncIterator[Address]:
        """Listen there; yields where, with the real port. OSError."""
        loop = asyncio.get_running_loop()
        bound = address
        if address.path:
            # left by one that was killed; a second one that runs would lose its visitors
            _unlink(address.path)
            server = await loop.create_unix_server(
                lambda: _Visitor(self), address.path, backlog=BACKLOG
            )
            os.chmod(address.path, 0o600)
        else:
            server = await loop.create_server(
                lambda: _Visitor(self), address.host, address.port, backlog=BACKLOG
            )
            bound = Address(host=address.host, port=server.sockets[0].getsockname()[1])
        try:
            yield bound
        finally:
            server.close()
            for visitor in list(self._joined):
                visitor.leave()
            if address.path:
                _unlink(address.path)

    async def tell(self) -> None:
        """Tell all routers what changes, until cancelled."""
        beat_at = 0.0
        clock = asyncio.get_running_loop().time
        while True:
            state = self._look()
            if state.changed or state.gone or clock() >= beat_at:
                beat_at = clock() + BEAT_EVERY_S
                data = wire.news(state)
                for visitor in list(self._joined):
                    visitor.send(data)
            await asyncio.sleep(TELL_EVERY_S)

    def answer(self, number: int, prefixes: Sequence[Hashes]) -> bytes:
        """What is known of these prompts."""
        self.counters.questions += 1
        found = []
        for prefix in prefixes:
            matches = self.index.match(prefix) if prefix else {}
            loads = self.index.beyond(prefix, matches) if prefix else {}
            found.append(Found(matches, dict(loads)))
        return wire.answer(number, found)

    def welcome(self, visitor: _Visitor) -> bytes:
        """It may ask from now on; what it must know at first."""
        self._joined.add(visitor)
        news = wire.news(StateNews(list(self._told.values())))
        return news if self.memory is None else news + wire.memory(self.memory)

    def gone(self, visitor: _Visitor) -> None:
        self._joined.discard(visitor)

    def _look(self) -> StateNews:
        now = {replica_id: self._state(replica_id) for replica_id in self.keeper.watched_ids()}
        changed = [state for state in now.values() if self._told.get(state.replica_id) != state]
        gone = [replica_id for replica_id in self._told if replica_id not in now]
        self._told = now
        return StateNews(changed, gone)

    def _state(self, replica_id: ReplicaId) -> ReplicaState:
        watched, trust = self.keeper.of(replica_id), self.keeper.of(replica_id).trust
        return ReplicaState(
            replica_id=replica_id,
            trust=trust.trust,
            reason=trust.reason,
            epoch=trust.epoch,
            blocks=self.index.replicas().get(replica_id, 0),
            block_sizes=sorted(self.index.block_sizes(replica_id)),
            is_learning=self.keeper.is_learning(replica_id),
            wants_prompts=trust.trust in _NO_EVENTS and watched.may_guess,
            restored=self.keeper.restored.get(replica_id, 0),
            counters=watched.counters.copy(),
            number=self.index.number_of(replica_id),
        )


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


class _Visitor(asyncio.Protocol):
    """One router's connection."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._frames = wire.Splitter(wire.STRANGER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._is_joined = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES)
        self._transport.write(wire.hello(self._nonce))
        self._limit = asyncio.get_running_loop().call_later(JOIN_S, self.leave)

    def connection_lost(self, exc: Exception | None) -> None:
        self._desk.gone(self)
        if self._limit is not None:
            self._limit.cancel()

    def pause_writing(self) -> None:
        """It doesn't read what it asked for."""
        self.leave()

    def data_received(self, data: bytes) -> None:
        try:
            for kind, body in self._frames.feed(data):
                self._take(kind, body)
        except BadFrame as exc:
            log.warning("a router's connection ends: %s", exc)
            self._desk.counters.refused += 1
            self.leave()

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _take(self, kind: int, body: bytes) -> None:
        desk = self._desk
        if not self._is_joined:
            self._join(kind, body)
        elif kind == Kind.ASK:
            self.send(desk.answer(*wire.read_ask(body)))
        elif kind == Kind.SERVED:
            desk.keeper.served(*wire.read_served(body))
        elif kind == Kind.HIT:
            report = wire.read_hit(body)
            for _ in range(1 + min(max(report.more, 0), wire.MOST_HITS)):
                desk.keeper.observe_hit(
                    report.replica_id, report.predicted_tokens, report.hit_tokens, report.age_s
                )
        elif kind == Kind.SUSPECT:
            desk.hurry(body.decode("utf-8", "replace"))
        elif kind == Kind.REUSED:
            desk.index.expect_reused(body.decode("utf-8", "replace"))

    def _join(self, kind: int, body: bytes) -> None:
        size = wire.NONCE_BYTES
        if kind != Kind.JOIN or len(body) < 2 * size:
            raise BadFrame("it did not join")
        expected = wire.proof(self._desk.token, b"router", self._nonce)
        if not hmac.compare_digest(body[:size], expected):
            raise BadFrame("it does not know the token")
        self._is_joined = True
        self._frames.max_bytes = wire.MAX_BYTES
        if self._limit is not None:
            self._limit.cancel()
        own = wire.proof(self._desk.token, b"index", body[size : 2 * size])
        self.send(wire.frame(Kind.WELCOME, own) + self._desk.welcome(self))
