"""Keep the index in step with one publisher: the life of an event, from frame to index."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from router.blocks import (
    AllBlocksCleared,
    BlockStored,
    Event,
    Frame,
    MalformedFrame,
)
from router.blocks.steps import EventReader
from router.events.pieces import in_pieces
from router.events.protocol import EventSource, Item, LinkDown, LinkUp, ReplayUnavailable
from router.events.sequence import SequenceTracker, Verdict
from router.events.trust import ReplicaTrust, Trust
from router.index import PrefixIndex
from router.replicas.replica import ReplicaId

SLICE_BLOCKS: Final = 512
"""Blocks applied before other tasks get a turn: about half a millisecond, and at times 2 ms, when
the index puts its trays away."""

NOT_FOLLOWED: Final = "not followed"
_EVENT_COST_BLOCKS: Final = 8
_FRAME_COST_BLOCKS: Final = 64  # receiving and decoding an almost empty frame takes as long


@dataclass(slots=True)
class IngestCounters:
    """What has come from one publisher. All only grow."""

    frames: int = 0
    events: int = 0
    unknown_events: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost_frames: int = 0
    """Frames of gaps that no replay could fill."""
    lost_tails: int = 0
    """Times when the newest frames were missing, which no later frame had shown yet."""
    restarts: int = 0
    replays: int = 0
    failed_replays: int = 0
    link_losses: int = 0

    def copy(self) -> IngestCounters:
        """As they are now."""
        return replace(self)


@dataclass(slots=True)
class Standing:
    """How far a publisher has been followed.

    `doubt`: why the index may be wrong about the past, until the cache is known to be empty.
    `is_midway`: in the middle of a frame, when the index stands at no frame's end.
    """

    tracker: SequenceTracker = field(default_factory=SequenceTracker)
    doubt: str = ""
    is_midway: bool = False
    slice_blocks: int = SLICE_BLOCKS


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
    follower = _Follower(replica_id, source, index, trust, standing or Standing())
    follower.counters = counters or follower.counters
    try:
        async with aclosing(source.frames()) as items:
            async for item in items:
                await follower.take(item)
    finally:
        index.forget(replica_id)
        trust.set(Trust.BLIND, NOT_FOLLOWED)


class _Follower:
    """The state of one `follow`.

    `_unproven`: why frames may be missing at this moment, until the next number proves otherwise.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        source: EventSource,
        index: PrefixIndex,
        trust: ReplicaTrust,
        standing: Standing,
    ) -> None:
        self._replica_id = replica_id
        self._source = source
        self._index = index
        self._trust = trust
        self.counters = IngestCounters()
        self._standing = standing
        self._tracker = standing.tracker
        self._spent = 0
        self._unproven = ""

    async def take(self, item: Item) -> None:
        if isinstance(item, Frame):
            await self._take_frame(item)
        elif isinstance(item, LinkUp):
            await self._catch_up()
            self._show()
        elif isinstance(item, LinkDown):
            self.counters.link_losses += 1
            self._trust.set(Trust.BLIND, item.reason)
        elif not self._unproven:
            await self._verify()
            self._show()

    async def _verify(self) -> None:
        """Ask whether the last frame taken is the newest. Who can't be asked is believed."""
        before = self._tracker.expected
        with suppress(ReplayUnavailable):
            if not await self._resume_if_begun():
                await self._begin()
        self.counters.lost_tails += self._tracker.expected != before

    async def _take_frame(self, frame: Frame) -> None:
        verdict = self._tracker.observe(frame.seq, frame.payload)
        if verdict is Verdict.RESTART:
            verdict = await self._restart(frame)
        elif verdict is Verdict.GAP:
            self.counters.gaps += 1
            await self._catch_up()
            verdict = self._tracker.observe(frame.seq, frame.payload)
        if verdict is Verdict.GAP:
            verdict = self._lose_until(frame)
        if verdict is Verdict.NEXT:
            await self._apply(frame)
        else:
            self.counters.duplicates += 1
            await self._pace(_FRAME_COST_BLOCKS)
        self._show()

    async def _restart(self, frame: Frame) -> Verdict:
        self.counters.restarts += 1
        self._begin_epoch()
        if frame.seq > 0:
            await self._catch_up()
        return self._tracker.observe(frame.seq, frame.payload)

    def _lose_until(self, frame: Frame) -> Verdict:
        """No replay has filled the gap: what we know may be gone, so it goes."""
        first = self._tracker.expected
        self.counters.lost_frames += frame.seq - first
        why = self._unproven or "the replay did not bring them"
        self._forget()
        self._tracker.skip_to(frame.seq)
        self._standing.doubt = f"frames {first} to {frame.seq - 1} are lost: {why}"
        return self._tracker.observe(frame.seq, frame.payload)

    async def _catch_up(self) -> None:
        """Learn what was published and missed: all of it, or since the last frame taken."""
        self.counters.replays += 1
        self._trust.set(Trust.CATCHING_UP, f"replay from frame {self._tracker.last or 0}")
        self._unproven = ""
        try:
            if not await self._resume_if_begun():
                await self._begin()
        except ReplayUnavailable as exc:
            self.counters.failed_replays += 1
            self._unproven = str(exc)

    async def _resume_if_begun(self) -> bool:
        last = self._tracker.last
        return last is not None and await self._resume(last)

    async def _resume(self, last: int) -> bool:
        """Go on after the last frame taken. False: it is not there, so this is another epoch.

        A restarted engine may have reached the same number, so the replay begins with the last
        frame, which must be the very same; else (also if it has left the buffer) nothing proves
        that what we know still holds.
        """
        is_same_epoch = False
        async with aclosing(self._source.replay(last)) as frames:
            async for frame in frames:
                verdict = self._tracker.observe(frame.seq, frame.payload)
                if not is_same_epoch and verdict is not Verdict.DUPLICATE:
                    return False
                is_same_epoch = True
                if verdict is Verdict.NEXT:
                    await self._apply(frame)
        return is_same_epoch

    async def _begin(self) -> None:
        """Learn a publisher's whole life, or as much as it still has."""
        self._begin_epoch()
        async with aclosing(self._source.replay(0)) as frames:
            async for frame in frames:
                if self._tracker.last is None and frame.seq > 0:
                    self._tracker.skip_to(frame.seq)
                    self._standing.doubt = f"history before frame {frame.seq} is unknown"
                if self._tracker.observe(frame.seq, frame.payload) is Verdict.NEXT:
                    await self._apply(frame)

    def _begin_epoch(self) -> None:
        if self._trust.epoch == 0 or self._tracker.last is not None:
            self._trust.begin_epoch()
        self._forget()
        self._tracker.restart()
        self._standing.doubt = ""
        self._unproven = ""

    def _forget(self) -> None:
        self._index.clear(self._replica_id)
        self._trust.note_forgotten()

    async def _apply(self, frame: Frame) -> None:
        self._unproven = ""
        self._standing.is_midway = True
        self.counters.frames += 1
        reader = EventReader(frame.payload)
        await self._pace(_FRAME_COST_BLOCKS)
        for event in in_pieces(reader):
            if event is None:
                await asyncio.sleep(0)
                continue
            self.counters.events += 1
            try:
                cost = self._apply_event(event)
            except (TypeError, ValueError, LookupError, AttributeError) as exc:
                raise MalformedFrame(f"frame {frame.seq}: a field of a wrong type: {exc}") from exc
            await self._pace(cost)
        self.counters.unknown_events += reader.unknown_events
        self._standing.is_midway = False

    def _apply_event(self, event: Event) -> int:
        if isinstance(event, AllBlocksCleared):
            self._forget()
            self._standing.doubt = ""  # whatever happened before, the cache is empty now
            return 1
        if isinstance(event, BlockStored):
            self._index.store(self._replica_id, event)
        else:
            self._index.remove(self._replica_id, event)
        return _EVENT_COST_BLOCKS + len(event.block_hashes)

    async def _pace(self, blocks: int) -> None:
        self._spent += blocks
        if self._spent >= self._standing.slice_blocks:
            self._spent = 0
            await asyncio.sleep(0)

    def _show(self) -> None:
        reason = self._unproven or self._standing.doubt
        self._trust.set(Trust.DEGRADED if reason else Trust.EXACT, reason)
