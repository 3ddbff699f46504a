"""Keep the index in step with one publisher: the life of an event, from frame to index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Final

from router.blocks import Frame
from router.events.applying import FRAME_COST_BLOCKS, Applier
from router.events.protocol import (
    EventSource,
    FramesLost,
    Item,
    LinkDown,
    LinkUp,
    NoReplay,
    ReplayUnavailable,
)
from router.events.sequence import Verdict
from router.events.standing import Backoff, IngestCounters, Standing
from router.events.trust import ReplicaTrust, Trust
from router.index import PrefixIndex
from router.replicas.replica import ReplicaId

NOT_FOLLOWED: Final = "not followed"
REFUTED: Final = "what was known has been forgotten: real hits fell short of predictions"
ANSWER_WITHIN_S: Final = 0.5
"""Who does not say within so long whether frames are missing is not called exact meanwhile."""


async def follow(
    replica_id: ReplicaId,
    source: EventSource,
    index: PrefixIndex,
    trust: ReplicaTrust,
    counters: IngestCounters | None = None,
    *,
    standing: Standing | None = None,
) -> None:
    """Apply a publisher's frames to the index until cancelled; then forget the replica.

    `standing`: where to go on, if the index holds the past already. The publisher must replay the
    very frame that it ends with, else all begins anew.
    MalformedFrame: the stream can't be trusted; whoever owns the task starts it anew, from an
    empty index. Frames that come during a replay wait in the source, so none is missed between
    the two; those that the replay has brought already are dropped as duplicates.
    """
    standing, counters = standing or Standing(), counters or IngestCounters()
    follower = _Follower(source, Applier(replica_id, index, standing, counters, trust))
    try:
        async with aclosing(source.frames()) as items:
            async for item in items:
                await follower.take(item)
    finally:
        index.forget(replica_id)
        trust.set(Trust.BLIND, NOT_FOLLOWED)


def refute(trust: ReplicaTrust, standing: Standing) -> None:
    """Real hits have refuted what was known, and the index has been made to forget it.

    Not exact before all of the past is known anew; it is asked for with the next frame, or in the
    next silence.
    """
    standing.doubt_all(REFUTED, standing.tracker.expected, may_ask=trust.may_learn_anew)
    trust.doubt(REFUTED)


class _Follower:
    """The state of one `follow`.

    `_unproven`: why frames may be missing at this moment, until the next number proves otherwise.
    `_is_hopeless`: asking again will not bring them. `_answers`: on this connection the publisher
    has answered a replay.
    """

    def __init__(self, source: EventSource, applier: Applier) -> None:
        self._source = source
        self._applier, self._trust = applier, applier.trust
        self._standing, self._counters = applier.standing, applier.counters
        self._tracker = applier.standing.tracker
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff()
        self._unproven = ""
        self._is_hopeless = False
        self._answers = False

    async def take(self, item: Item) -> None:
        if isinstance(item, LinkDown):
            self._counters.link_losses += 1
            self._trust.set(Trust.BLIND, item.reason)
            return
        if isinstance(item, LinkUp):
            self._backoff.answered()
            self._answers = False
            await self._catch_up()
        elif self._standing.must_relearn and self._is_due:
            await self._relearn()
        elif not isinstance(item, Frame):
            await self._verify()
        if isinstance(item, Frame):
            await self._take_frame(item)
        self._show()

    async def _take_frame(self, frame: Frame) -> None:
        verdict = self._tracker.observe(frame.seq, frame.payload)
        if verdict is Verdict.RESTART:
            self._counters.restarts += 1
            self._begin_epoch()
            await self._catch_up()
            verdict = self._tracker.observe(frame.seq, frame.payload)
        elif verdict is Verdict.GAP:
            self._counters.gaps += 1
            await self._catch_up()
            verdict = self._tracker.observe(frame.seq, frame.payload)
        if verdict is Verdict.GAP:
            self._lose_until(frame.seq, self._unproven or "the replay did not bring them")
            self._standing.must_relearn = not self._is_hopeless
            verdict = self._tracker.observe(frame.seq, frame.payload)
        if verdict is Verdict.NEXT:
            await self._apply(frame)
        else:
            self._counters.duplicates += 1
            await self._applier.pace(FRAME_COST_BLOCKS)

    def _lose_until(self, seq: int, why: str) -> None:
        """No replay has filled the gap: what we know may be gone, so it goes."""
        first = self._tracker.expected
        self._counters.lost_frames += seq - first
        self._applier.forget()
        self._tracker.skip_to(seq)
        doubt = f"frames {first} to {seq - 1} are lost: {why}"
        self._standing.doubt_all(doubt, seq, may_ask=False)
        self._trust.doubt(doubt)

    async def _catch_up(self) -> None:
        """Learn what was published and missed: all of it, or since the last frame taken."""
        self._counters.replays += 1
        self._trust.set(Trust.CATCHING_UP, f"replay from frame {self._tracker.last or 0}")
        await self._ask_what_is_missing()

    async def _verify(self) -> None:
        """Ask whether the last frame taken is the newest. Who can't be asked is believed."""
        if self._unproven:
            if self._is_hopeless or not self._is_due:
                return
        elif not self._answers:
            return
        before = self._tracker.expected
        slow = self._loop.call_later(
            ANSWER_WITHIN_S, self._trust.set, Trust.CATCHING_UP, "asked whether frames are missing"
        )
        try:
            await self._ask_what_is_missing()
        finally:
            slow.cancel()
        self._counters.lost_tails += self._tracker.expected != before

    async def _relearn(self) -> None:
        """Ask for all of the past once more: some of it was lost, or what we knew was refuted."""
        self._counters.replays += 1
        self._trust.set(Trust.CATCHING_UP, "replay from frame 0")
        before = self._tracker.position
        if await self._hears(self._begin(is_same_life=True)):
            self._trust.learned_anew()
        is_other_life = before is not None and not self._tracker.has_taken(*before)
        if is_other_life and not self._unproven:
            self._trust.begin_epoch()

    async def _ask_what_is_missing(self) -> None:
        await self._hears(self._resume_or_begin())

    async def _hears(self, replay: Awaitable[None]) -> bool:
        """Is a replay heard to its end? Else remember why not, and whether to try again."""
        self._unproven, self._is_hopeless = "", False
        try:
            await replay
        except ReplayUnavailable as exc:
            self._counters.failed_replays += 1
            self._unproven = str(exc)
            self._is_hopeless = isinstance(exc, NoReplay)
            self._backoff.failed(self._loop.time())
            return False
        self._answers = True
        self._backoff.answered()
        return True

    async def _resume_or_begin(self) -> None:
        last = self._tracker.last
        if last is None or not await self._resume(last):
            await self._begin()

    async def _resume(self, last: int) -> bool:
        """Go on after the last frame taken. False: it is not there, so this is another epoch.

        A restarted engine may have reached the same number, so the replay begins with the last
        frame, which must be the very same; else (also if it has left the buffer) nothing proves
        that what we know still holds.
        """
        is_same_epoch = False
        async with aclosing(self._past(last)) as frames:
            async for frame in frames:
                verdict = self._tracker.observe(frame.seq, frame.payload)
                if not is_same_epoch and verdict is not Verdict.DUPLICATE:
                    return False
                is_same_epoch = True
                if verdict is Verdict.NEXT:
                    self._trust.set(Trust.CATCHING_UP, f"replay from frame {last}")
                    await self._apply(frame)
        return is_same_epoch

    async def _begin(self, *, is_same_life: bool = False) -> None:
        """Learn a publisher's whole life, or as much as it still has.

        `is_same_life`: what is known stays until the publisher has answered with more than that.
        """
        has_begun = not is_same_life
        if has_begun:
            self._begin_epoch()
        async with aclosing(self._past(0)) as frames:
            async for frame in frames:
                if not has_begun:
                    if frame.seq and frame.seq >= self._standing.known_from:
                        return
                    self._start_over()
                    has_begun = True
                if self._tracker.last is None and frame.seq > self._tracker.expected:
                    self._tracker.skip_to(frame.seq)
                    doubt = f"history before frame {frame.seq} is unknown"
                    self._standing.doubt_all(doubt, frame.seq, may_ask=False)
                if self._tracker.observe(frame.seq, frame.payload) is Verdict.NEXT:
                    await self._apply(frame)
        if not has_begun:
            self._begin_epoch()

    async def _past(self, since: int) -> AsyncGenerator[Frame, None]:
        """What the publisher still has from `since` on; a hole in it costs what was known."""
        start: int | None = since
        while start is not None:
            try:
                async with aclosing(self._source.replay(start)) as frames:
                    start = None
                    async for frame in frames:
                        yield frame
            except FramesLost as exc:
                start = exc.goes_on_at
                self._lose_until(start, "the publisher no longer has them")

    def _begin_epoch(self) -> None:
        if self._trust.epoch == 0 or self._tracker.last is not None:
            self._trust.begin_epoch()
        self._start_over()

    def _start_over(self) -> None:
        if self._tracker.last is not None:
            self._trust.set(Trust.CATCHING_UP, "replay from frame 0")
        self._applier.clear()
        self._tracker.restart()

    async def _apply(self, frame: Frame) -> None:
        self._unproven = ""
        await self._applier.apply(frame)

    @property
    def _is_due(self) -> bool:
        return self._backoff.is_due(self._loop.time())

    def _show(self) -> None:
        reason = self._unproven or self._standing.doubt
        self._trust.set(Trust.DEGRADED if reason else Trust.EXACT, reason)
