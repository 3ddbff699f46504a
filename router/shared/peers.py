"""Tells the other routers what this one makes replicas do, and learns it of them."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from router.collectors import SharedSample
from router.index.moved import Moved
from router.index.reservations import Reservations
from router.index.told import Told
from router.shared.protocol import SharedStore, StoreFailed, StoreState
from router.shared.report import Report, decode_moves, decode_report, encode_moves, encode_report
from router.supervise import Work

log = logging.getLogger(__name__)


MOVES_AT_ONCE: Final = 500
WORK_SHARE: Final = 0.05
"""Of its time a router spends no more on exchanges, however soon they should follow each other:
what others report of many replicas takes long to read."""


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """`interval_s`: between two exchanges; `busy_interval_s`: while a prompt waits anywhere, and
    for `busy_for_s` after: who has just heard of none hears of the next one late.
    `ttl_s`: a router that was not heard of for so long has no load any more."""

    interval_s: float = 0.15
    busy_interval_s: float = 0.01
    busy_for_s: float = 1.0
    ttl_s: float = 2.0


@dataclass(frozen=True, slots=True)
class _Heard:
    report: Report
    at: float


@dataclass(slots=True)
class Peers:
    """One router's place among its siblings. Nothing on a request's path waits for it.

    Every interval: one round trip, then `reservations.others` is what the others reported. While
    the store fails, what was heard last counts until its time is over; then the router is alone.
    """

    router_id: str
    store: SharedStore
    reservations: Reservations
    clock: Callable[[], float]
    times: PeerTimes = PeerTimes()
    is_shared: bool = True
    group: str = ""
    moved: Moved = field(default_factory=Moved)
    state: StoreState = StoreState.OFF
    failures: Counter[str] = field(default_factory=Counter)
    wipes: int = 0
    _number: int = 0
    _reported_at: float | None = None
    _since: str = "0"
    _is_mute: bool = False
    _trade_at: float = -math.inf
    _busy_until: float = -math.inf
    _work_s: float = 0.0
    """What the last exchange took this process, without waiting."""
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _told: Told = field(init=False)

    def __post_init__(self) -> None:
        # a report is at most one interval old when it is read, and what it doesn't say yet comes
        # with the next: one more, and half of one for the round trips
        interval_s = self.times.interval_s
        unseen_s = min(self.times.busy_interval_s, interval_s)
        late_s = 2.5 * interval_s
        self._told = Told(self.clock, late_s=late_s, vague_s=interval_s, unseen_s=unseen_s)

    @property
    def routers(self) -> int:
        """Those that are known to run, this one among them."""
        return 1 + len(self._heard)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    def start(self, run: Callable[[str, Work], None]) -> None:
        """Begin to exchange, unless there is nobody to exchange with."""
        if self.is_shared:
            run("shared", self.keep)

    async def keep(self) -> None:
        """Exchange until cancelled."""
        while True:
            started = self.clock()
            await self.tick()
            await asyncio.sleep(max(0.01, self.pause_s() - (self.clock() - started)))

    def pause_s(self) -> float:
        """From the beginning of one exchange to the next.

        Load that is told late makes routers choose alike: who was idle gets all their prompts. So
        while prompts wait, which is when choices depend on load, it is told sooner.
        """
        times = self.times
        waits = self.reservations.is_waiting or any(
            row.waiting for heard in self._heard.values() for row in heard.report.loads
        )
        if waits:
            self._busy_until = self.clock() + times.busy_for_s
        soon_s = max(times.busy_interval_s, self._work_s / WORK_SHARE)
        is_busy = self.clock() < self._busy_until
        return min(soon_s, times.interval_s) if is_busy else times.interval_s

    async def tick(self) -> None:
        """One exchange, good or bad, and what follows from it."""
        self._number += 1
        began = self.clock()
        report = encode_report(self._number, self.reservations.own_loads(), self.group)
        self._work_s = self.clock() - began
        try:
            got = await self.store.exchange(self.router_id, report, self.times.ttl_s)
        except StoreFailed as exc:
            self.failures[exc.state] += 1
            self._enter(exc.state, str(exc))
        else:
            began = self.clock()
            self._note_wipe(was_known=got.was_known)
            self._hear(got.others)
            self._work_s += self.clock() - began
            self._enter(StoreState.OK, f"{self.routers} routers")
            await self._trade()
        began = self.clock()
        self._apply()
        self._work_s += self.clock() - began

    async def _trade(self) -> None:
        """Tell of sessions that were moved, and hear of others'. A store that can't do that, by its
        version or by what it lets us do, is good enough for load."""
        now, moves = self.clock(), self.moved.untold(MOVES_AT_ONCE)
        if not moves and now < self._trade_at:
            return
        self._trade_at = now + self.times.interval_s - self.times.busy_interval_s
        note = encode_moves(self.router_id, moves) if moves else None
        try:
            got = await self.store.trade(note, self._since, self.moved.ttl_s)
        except StoreFailed as exc:
            self.failures[exc.state] += 1
            if not self._is_mute:
                log.warning("routers don't hear of moved sessions: %s", exc)
            self._is_mute = True
            return
        self._is_mute, self._since = False, got.last
        self.moved.told(moves)
        for data in got.notes:
            found = decode_moves(data)
            if found is not None and found.router_id != self.router_id:
                self.moved.hear(found.moves, self.clock())

    async def leave(self) -> None:
        """Say goodbye, if anyone listens, and close."""
        with suppress(StoreFailed):
            await self.store.leave(self.router_id)
        with suppress(StoreFailed):
            await self.store.aclose()

    def sample(self) -> SharedSample:
        untold = self.reservations.siblings.untold
        return SharedSample(
            self.state, self.routers, dict(self.failures), self.wipes, untold=untold
        )

    def _note_wipe(self, *, was_known: bool) -> None:
        now, before = self.clock(), self._reported_at
        self._reported_at = now
        # half the time to live: clocks of two machines are compared here
        if before is not None and not was_known and now - before < self.times.ttl_s / 2:
            self.wipes += 1
            log.warning("the shared store lost what was in it")

    def _hear(self, others: Mapping[str, bytes]) -> None:
        now, heard = self.clock(), {}
        for router_id, data in others.items():
            report = decode_report(data)
            if report is None:
                continue
            before = self._heard.get(router_id)
            is_old = before is not None and before.report.number == report.number
            heard[router_id] = before if is_old and before is not None else _Heard(report, now)
        self._heard = heard

    def _apply(self) -> None:
        """From now on this is what others do."""
        oldest = self.clock() - self.times.ttl_s
        self._heard = {i: h for i, h in self._heard.items() if h.at > oldest}
        told, group = self._told, self.group
        apart = {i: h for i, h in self._heard.items() if not group or h.report.group != group}
        told.keep(apart)
        for router_id, heard in apart.items():
            loads = {row.replica_id: row.load for row in heard.report.loads}
            told.tell_all(router_id, loads, heard.at)
        self.reservations.others = told

    def _enter(self, state: StoreState, why: str) -> None:
        if state is not self.state:
            level = logging.INFO if state is StoreState.OK else logging.WARNING
            log.log(level, "shared state: %s -> %s (%s)", self.state, state, why)
        self.state = state
