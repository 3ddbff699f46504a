"""The central index as a router sees it: asked with a deadline, and followed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from router.blocks import BlockHash
from router.central import wire
from router.central.address import Address
from router.central.link import SILENCE_S, Link
from router.central.memory import CAN_SHARE, Place, Window, prepare
from router.central.unsaid import Unsaid
from router.central.wire import Hit, ReplicaState, StateNews
from router.events.keeper import Watched
from router.events.snapshot import ReplicaSnapshot
from router.events.trust import ReplicaTrust, Trust
from router.index.answers import NO_ANSWERS, Answer, Answers, Known
from router.replicas import ReplicaId

log = logging.getLogger(__name__)

CONNECT_S: Final = 2.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
AWAY: Final = "the central index is away"
IN_PLACE: Final = "in_place"
IN_TIME: Final = "in_time"
OUTCOMES: Final = (IN_PLACE, IN_TIME, "late", "busy", "down")
SAY_S: Final = 0.05
"""What may be lost is told so late, that many words wake the index up once."""


@dataclass(frozen=True, slots=True)
class AskLimits:
    """`deadline_s`: longest wait for an answer. `max_questions`: most that wait at once."""

    deadline_s: float = 0.002
    max_questions: int = 256


@dataclass(slots=True)
class CentralIndex:
    """What the planner asks and what the gateway shows, where the index is another process'.

    While it can't be asked, nothing is known of any prompt, and the trust in every replica is
    BLIND; block sizes are remembered, so that prompts that begin alike still go to one place.
    """

    address: Address
    token: bytes = b""
    limits: AskLimits = AskLimits()
    outcomes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    """Questions by what came of them: in_place, in_time, late, busy, down."""
    restored: dict[str, int] = field(default_factory=dict)
    _link: Link | None = None
    _states: dict[ReplicaId, ReplicaState] = field(default_factory=dict)
    _sizes: dict[ReplicaId, frozenset[int]] = field(default_factory=dict)
    _watched: dict[ReplicaId, Watched] = field(default_factory=dict)
    _reusing: set[ReplicaId] = field(default_factory=set)
    _window: Window | None = None
    _names: dict[int, ReplicaId] = field(default_factory=dict)
    """Replicas by their numbers in the index's memory."""
    _unsaid: Unsaid = field(default_factory=Unsaid)

    @property
    def is_connected(self) -> bool:
        """Can it be asked now?"""
        return self._link is not None

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        pause_s = FIRST_PAUSE_S
        if self.address.path and CAN_SHARE:
            await asyncio.to_thread(prepare)
        while True:
            try:
                link = await self._connect()
            except (OSError, TimeoutError) as exc:
                log.debug("the central index at %s: %s", self.address, exc)
            else:
                pause_s = FIRST_PAUSE_S
                log.info("the central index at %s answers", self.address)
                why = await self._keep(link)
                log.warning("the central index at %s is away: %s", self.address, why)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    @property
    def at_hand(self) -> Known | None:
        """See `source.Source`: it must be waited for."""
        return None

    async def ask(self, prefixes: Sequence[Sequence[BlockHash]]) -> tuple[Known, str]:
        """See `source.Source`."""
        link = self._link
        if link is None:
            return self._missed("down")
        if not prefixes:
            return NO_ANSWERS, ""
        if self._window is not None and (answers := self._read(self._window, prefixes)):
            self.outcomes[IN_PLACE] += 1
            return Answers(answers), ""
        if not link.is_writable or link.waiting >= self.limits.max_questions:
            return self._missed("busy")
        found = await link.ask(prefixes, self.limits.deadline_s)
        if found is None or len(found) != len(prefixes):
            return self._missed("late" if self._link is link else "down")
        self.outcomes[IN_TIME] += 1
        pairs = zip(prefixes, found, strict=True)
        return Answers({p[-1]: Answer(f.matches, f.loads) for p, f in pairs}), ""

    def block_sizes(self, replica_id: ReplicaId) -> frozenset[int]:
        """See `source.Source`."""
        return self._sizes.get(replica_id, frozenset())

    def replicas(self) -> dict[ReplicaId, int]:
        """Blocks of each, as told last."""
        return {replica_id: state.blocks for replica_id, state in self._states.items()}

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left. What the central index knows is its own to forget."""
        self._watched.pop(replica_id, None)
        self._sizes.pop(replica_id, None)

    def of(self, replica_id: ReplicaId) -> Watched:
        """See `Watching`."""
        if replica_id not in self._watched:
            watched = self._watched[replica_id] = Watched(ReplicaTrust(replica_id))
            watched.trust.set(Trust.BLIND, AWAY)
            self._show(replica_id)
        return self._watched[replica_id]

    def is_learning(self, replica_id: ReplicaId) -> bool:
        """See `Watching`."""
        state = self._states.get(replica_id)
        return not self.is_connected or state is None or state.is_learning

    def served(
        self, replica_id: ReplicaId, prefix: Sequence[BlockHash], hit_tokens: int | None
    ) -> None:
        """See `Watching`. Told only of replicas that don't say it themselves."""
        state = self._states.get(replica_id)
        if state is not None and state.wants_prompts and prefix:
            self._say(wire.served(replica_id, prefix, hit_tokens))

    def observe_hit(
        self, replica_id: ReplicaId, predicted_tokens: int, hit_tokens: int, age_s: float
    ) -> None:
        """See `Watching`."""
        if self._link is not None:
            self._say_soon()
            self._unsaid.add_hit(Hit(replica_id, predicted_tokens, hit_tokens, age_s + SAY_S))

    def expect_reused(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`. Told once on each connection."""
        if self._link is not None and replica_id not in self._reusing:
            self._reusing.add(replica_id)
            self._say(wire.frame(wire.Kind.REUSED, replica_id.encode()))

    def suspect(self, replica_id: ReplicaId) -> None:
        """We can't reach it: the index should look at once."""
        self._say(wire.frame(wire.Kind.SUSPECT, replica_id.encode()))
        self._say_all()

    async def snapshot(self) -> list[ReplicaSnapshot]:
        """See `Watching`: the central index has it."""
        return []

    async def _connect(self) -> Link:
        """A connection that may ask. OSError, TimeoutError."""
        loop, address = asyncio.get_running_loop(), self.address
        self._states.clear()
        self._names.clear()
        self._window = None
        self._reusing.clear()
        self._unsaid.take()
        async with asyncio.timeout(CONNECT_S):
            _, link = (
                await loop.create_unix_connection(self._new_link, address.path)
                if address.path
                else await loop.create_connection(self._new_link, address.host, address.port)
            )
            try:
                await asyncio.wait((link.joined, link.lost), return_when=asyncio.FIRST_COMPLETED)
            except BaseException:
                link.close("no welcome")
                raise
        if link.lost.done():
            log.warning("the central index at %s: %s", address, link.lost.result())
            raise ConnectionError(link.lost.result())
        return link

    def _new_link(self) -> Link:
        return Link(self.token, self._hear, self._look_into)

    async def _keep(self, link: Link) -> str:
        """Ask there until it is lost; returns why."""
        loop = asyncio.get_running_loop()
        self._link = link
        self._show_all()
        try:
            while not link.lost.done():
                silent_s = loop.time() - link.heard_at
                if silent_s >= SILENCE_S:
                    link.close(f"silent for {silent_s:.1f} s")
                    break
                await asyncio.wait((link.lost,), timeout=SILENCE_S - silent_s)
            return link.lost.result()
        finally:
            self._link = self._window = None
            link.close("not wanted any more")
            self._show_all()

    def _hear(self, news: StateNews) -> None:
        for state in news.changed:
            self._forget_number(state.replica_id)
            self._states[state.replica_id] = state
            self.restored[state.replica_id] = state.restored
            self._names[state.number] = state.replica_id
            if state.block_sizes:
                self._sizes[state.replica_id] = frozenset(state.block_sizes)
            self._show(state.replica_id)
        for replica_id in news.gone:
            self._forget_number(replica_id)
            self._states.pop(replica_id, None)
            self._show(replica_id)

    def _forget_number(self, replica_id: ReplicaId) -> None:
        if (state := self._states.get(replica_id)) is not None:
            self._names.pop(state.number, None)

    def _look_into(self, place: Place) -> None:
        """It may be read in its memory, unless that can't be done."""
        if not CAN_SHARE:
            return
        try:
            self._window = Window(place)
        except (OSError, ValueError) as exc:
            log.warning("the central index at %s is asked, not read: %s", self.address, exc)

    def _read(
        self, window: Window, prefixes: Sequence[Sequence[BlockHash]]
    ) -> dict[BlockHash, Answer] | None:
        """What it holds now. None: it is being written all the time."""
        answers, names = {}, self._names
        for prefix in prefixes:
            if (found := window.match(prefix)) is None:
                return None
            matches = {names[number]: depth for number, depth in found if number in names}
            answers[prefix[-1]] = Answer(matches, {})
        return answers

    def _show_all(self) -> None:
        for replica_id in list(self._watched):
            self._show(replica_id)

    def _show(self, replica_id: ReplicaId) -> None:
        """Bring what users see of a replica up to date."""
        watched, state = self._watched.get(replica_id), self._states.get(replica_id)
        if watched is None:
            return
        if state is None or not self.is_connected:
            watched.trust.set(Trust.BLIND, AWAY)
            return
        watched.trust.epoch, watched.counters = state.epoch, state.counters
        watched.trust.set(state.trust, state.reason)

    def _missed(self, why: str) -> tuple[Known, str]:
        self.outcomes[why] += 1
        return NO_ANSWERS, why

    def _say(self, data: bytes) -> None:
        """Tell the index something that may be lost, with whatever else is said soon."""
        if self._link is not None:
            self._say_soon()
            self._unsaid.add(data)

    def _say_soon(self) -> None:
        if not self._unsaid:
            asyncio.get_running_loop().call_later(SAY_S, self._say_all)

    def _say_all(self) -> None:
        said = self._unsaid.take()
        if said and self._link is not None and self._link.is_writable:
            self._link.send(said)
