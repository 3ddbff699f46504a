"""Where a follower stands: how far it has come, what it doubts, when it asks again. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from router.events.sequence import SequenceTracker

SLICE_BLOCKS: Final = 512
"""Blocks applied before other tasks get a turn: about half a millisecond."""


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

    `doubt`: why the index may be wrong about the past, until the cache is known to be empty or
    all of the past has been applied. `known_from`: what was published before this frame is not
    known. `must_relearn`: it may still be had; ask for it.
    `is_midway`: in the middle of a frame, when the index stands at no frame's end.
    """

    tracker: SequenceTracker = field(default_factory=SequenceTracker)
    doubt: str = ""
    known_from: int = 0
    must_relearn: bool = False
    is_midway: bool = False
    slice_blocks: int = SLICE_BLOCKS

    def doubt_all(self, why: str, known_from: int, *, may_ask: bool) -> None:
        """What was published before frame `known_from` is lost, or was made to be forgotten."""
        self.doubt, self.known_from, self.must_relearn = why, known_from, may_ask

    def trust_all(self) -> None:
        """Whatever happened before: the cache is empty now, or its past begins anew."""
        self.doubt, self.known_from, self.must_relearn = "", 0, False


@dataclass(slots=True)
class Backoff:
    """When to ask again who did not answer: each time after twice as long."""

    first_s: float = 1.0
    most_s: float = 60.0
    _pause_s: float = 0.0
    _not_before: float = 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._not_before

    def failed(self, now_s: float) -> None:
        self._pause_s = min(2 * self._pause_s, self.most_s) or self.first_s
        self._not_before = now_s + self._pause_s

    def answered(self) -> None:
        self._pause_s = self._not_before = 0.0
