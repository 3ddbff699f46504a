"""Tells the other routers what this one makes replicas do, and learns it of them."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from router.collectors import SharedSample
from router.index.moved import Moved
from router.index.reservations import Reservations
from router.index.told import Told
from router.shared.hearing import Hearing
from router.shared.news import Newsroom
from router.shared.protocol import SharedStore, StoreFailed, StoreState
from router.shared.report import decode_moves, encode_moves, encode_report
from router.supervise import Work

log = logging.getLogger(__name__)


MOVES_AT_ONCE: Final = 500
WORK_SHARE: Final = 0.05
"""Of its time a router spends no more on exchanges, however soon they should follow each other:
what others report of many replicas takes long to read."""
NEWS_LATE_S: Final = 0.1
"""What has not been heard as news after so long has not happened."""


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """`interval_s`: between two exchanges; `busy_interval_s`: while a prompt waits anywhere, and
    for `busy_for_s` after, because who has just heard of none hears of the next one late; only
    where routers don't tell each other of each change. `news_s`: between two pieces of such news;
    0: there are none. `ttl_s`: a router that was not heard of for so long has no load any more.
    """

    interval_s: float = 0.15
    busy_interval_s: float = 0.01
    busy_for_s: float = 1.0
    ttl_s: float = 2.0
    news_s: float = 0.0


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
    _ok_at: float = -math.inf
    """When the last good exchange began."""
    hearing: Hearing = field(init=False)
    news: Newsroom = field(init=False)

    def __post_init__(self) -> None:
        told = Told(self.clock, vague_s=self.times.interval_s)
        self.hearing = Hearing(told, self.clock, self.times.ttl_s, self.group)
        self.news = Newsroom(
            *(self.router_id, self.store, self.reservations.own_load, self.clock),
            hear=self.hearing.news,
            next_number=self._next_number,
            elsewhere=lambda: self.hearing.elsewhere,
            interval_s=self.times.news_s,
            group=self.group,
        )
        self._adapt()

    @property
    def routers(self) -> int:
        """Those that are known to run, this one among them."""
        return 1 + len(self.hearing)

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
            if self.times.news_s:
                self.reservations.on_change = self.news.changed
                run("shared-news", self.news.keep)

    async def keep(self) -> None:
        """Exchange until cancelled."""
        while True:
            started = self.clock()
            await self.tick()
            await asyncio.sleep(max(0.01, self.pause_s() - (self.clock() - started)))

    @property
    def is_told_at_once(self) -> bool:
        """Does each change come as news, here and from all others?"""
        news = self.news
        # an exchange after it was ready, because what was published before it was missed
        is_whole = news.is_live and news.ready_at < self._ok_at
        return is_whole and self.hearing.all_tell_news

    def pause_s(self) -> float:
        """From the beginning of one exchange to the next.

        Where there are news, exchanges only say them again, for who has missed some. Else: load
        that is told late makes routers choose alike, and who was idle gets all their prompts. So
        while prompts wait, which is when choices depend on load, it is told sooner.
        """
        times = self.times
        if self.is_told_at_once:
            return times.interval_s
        if self.reservations.is_waiting or self.hearing.waits:
            self._busy_until = self.clock() + times.busy_for_s
        soon_s = max(times.busy_interval_s, self._work_s / WORK_SHARE)
        is_busy = self.clock() < self._busy_until
        return min(soon_s, times.interval_s) if is_busy else times.interval_s

    async def tick(self) -> None:
        """One exchange, good or bad, and what follows from it."""
        began = since = self.clock()
        loads, pushes = self.reservations.own_loads(), self.news.is_live
        report = encode_report(self._next_number(), loads, self.group, pushes=pushes)
        self._work_s = self.clock() - began
        try:
            got = await self.store.exchange(self.router_id, report, self.times.ttl_s)
        except StoreFailed as exc:
            self.failures[exc.state] += 1
            self._enter(exc.state, str(exc))
            if self._passes_on:
                self.news.say_all(loads)
        else:
            self._ok_at, began = since, self.clock()
            self._note_wipe(was_known=got.was_known)
            self.hearing.reports(got.others)
            self._work_s += self.clock() - began
            self._enter(StoreState.OK, f"{self.routers} routers")
            await self._trade()
        self.hearing.forget_silent()
        self._adapt()
        self.reservations.others = self.hearing.told

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
            await self.news.say_goodbye()
        with suppress(StoreFailed):
            await self.store.leave(self.router_id)
        with suppress(StoreFailed):
            await self.store.aclose()

    def sample(self) -> SharedSample:
        untold = self.reservations.siblings.untold
        news = self.news
        return SharedSample(
            *(self.state, self.routers, dict(self.failures), self.wipes),
            untold=untold,
            news=news.state,
            news_told=news.told,
            news_heard=news.heard,
            told_after_s=news.delay_s,
        )

    def _note_wipe(self, *, was_known: bool) -> None:
        now, before = self.clock(), self._reported_at
        self._reported_at = now
        # half the time to live: clocks of two machines are compared here
        if before is not None and not was_known and now - before < self.times.ttl_s / 2:
            self.wipes += 1
            log.warning("the shared store lost what was in it")

    def _adapt(self) -> None:
        """How late others' load is known now."""
        told, times = self.hearing.told, self.times
        is_told_at_once = self.is_told_at_once
        # a report is at most one interval old when it is read, and what it doesn't say yet comes
        # with the next: one more, and half of one for the round trips
        told.late_s = NEWS_LATE_S if is_told_at_once else 2.5 * times.interval_s
        soonest_s = min(times.busy_interval_s, times.interval_s)
        unseen_s = min(self.news.delay_s, soonest_s) if is_told_at_once else soonest_s
        told.unseen_s = unseen_s if self.hearing.elsewhere else 0.0
        if self.state is StoreState.OK or self._passes_on:
            told.hear_again()
        elif (last_at := self.hearing.last_at) is not None:
            told.go_deaf(last_at)

    @property
    def _passes_on(self) -> bool:
        """A store that keeps nothing of ours passes news on all the same."""
        return self.news.is_live and self.state in (StoreState.FULL, StoreState.DENIED)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _enter(self, state: StoreState, why: str) -> None:
        if state is StoreState.OK and self.state is not StoreState.OK:
            self.news.hurry()
        if state is not self.state:
            level = logging.INFO if state is StoreState.OK else logging.WARNING
            log.log(level, "shared state: %s -> %s (%s)", self.state, state, why)
        self.state = state
