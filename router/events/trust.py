"""How far the index can be believed about a replica: a state that users see."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from router.replicas.replica import ReplicaId


class Trust(StrEnum):
    """From "all is known" to "nothing is"."""

    EXACT = "exact"
    """All events since the cache was last empty have been applied."""
    CATCHING_UP = "catching_up"
    """A replay is running."""
    DEGRADED = "degraded"
    """Events flow, but blocks may be unknown, or known and gone."""
    APPROXIMATE = "approximate"
    """No events: what is known comes from our own routing. Set by whoever keeps that history."""
    BLIND = "blind"
    """No events come now. What was known is kept as a hint, and grows old."""


@dataclass(frozen=True, slots=True)
class TrustChange:
    """What `on_change` is told; `epoch` counts the publisher's lives, from 1 (0: none seen)."""

    replica_id: ReplicaId
    trust: Trust
    reason: str
    epoch: int


NOT_ASKED: Final = "no event yet"
OnChange: TypeAlias = Callable[[TrustChange], None]


class ReplicaTrust:
    """One replica's trust: what its events allow, less what its real hits contradict.

    A hit counts against it when less than half of the predicted blocks were reused, and for it
    otherwise. `patience` contradictions (net) turn EXACT into DEGRADED; EXACT is back when as
    many hits have agreed, or when what they spoke of is known anew from the events. A single hit
    that was missed altogether does so until the next frame, which tells of a reset if there was
    one. That finds caches which were reset or lost without an event: an idle vLLM announces a
    reset only with its next step. What was predicted before the index forgot (`note_forgotten`)
    says nothing of what it holds now.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        *,
        patience: int = 3,
        on_change: OnChange | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replica_id = replica_id
        self._clock = clock
        self.epoch = 0
        self._patience = patience
        self._on_change = on_change
        self._by_events = (Trust.BLIND, NOT_ASKED)
        self._contradictions = 0
        self._is_contradicted = False
        self._is_suspected = False
        self._accusation = ""
        self._was_relearned = False
        self._agreed = 0
        self._forgotten_at = -math.inf
        self._shown = self._current()

    @property
    def trust(self) -> Trust:
        """What users see."""
        return self._shown[0]

    @property
    def reason(self) -> str:
        """Why; empty while all is well."""
        return self._shown[1]

    def set(self, trust: Trust, reason: str = "") -> None:
        """What the events say now. A frame that has come since a missed hit explains it."""
        self._by_events = (trust, reason)
        self._is_suspected = False
        self._show()

    def doubt(self, reason: str) -> None:
        """Whatever the events have said until now, something else speaks against it."""
        if self._by_events[0] is Trust.EXACT:
            self.set(Trust.DEGRADED, reason)

    def begin_epoch(self) -> None:
        """A publisher's new life: old contradictions don't count."""
        self.epoch += 1
        self._contradictions = 0
        self._is_contradicted = False
        self._is_suspected = False
        self._accusation = ""
        self._was_relearned = False
        self._show()

    def note_forgotten(self) -> None:
        """Its events, or whoever reset its cache, say that nothing known of it holds any more."""
        self._contradictions = 0
        self._is_contradicted = False
        self._is_suspected = False
        self._forgotten_at = self._clock()

    def learned_anew(self) -> None:
        """All of its past has been applied once more, as its publisher replays it."""
        self._was_relearned = True
        self._agreed = 0

    @property
    def may_learn_anew(self) -> bool:
        """Is a replay worth asking for? Not if hits have refuted the last one."""
        return not self._was_relearned or self._agreed >= self._patience

    def accuse(self, mistake: str) -> None:
        """A self-test has found something wrong (empty: nothing). Holds for this epoch."""
        self._accusation = mistake
        self._show()

    def observe_hit(self, predicted_blocks: int, hit_blocks: int, age_s: float = 0.0) -> bool:
        """Compare a prediction, made `age_s` ago or later, with what the engine reported.

        True at the moment when EXACT is lost: the caller should then clear the replica's blocks.
        """
        if predicted_blocks <= 0 or self._clock() - age_s <= self._forgotten_at:
            return False
        self._is_suspected = hit_blocks <= 0
        was_contradicted = self._is_contradicted
        step = 1 if 2 * hit_blocks < predicted_blocks else -1
        self._agreed += step < 0
        self._contradictions = min(max(self._contradictions + step, 0), self._patience)
        if self._contradictions == self._patience:
            self._is_contradicted = True
        elif self._contradictions == 0:
            self._is_contradicted = False
        is_refuted = self._is_contradicted and not was_contradicted
        if is_refuted:
            self._forgotten_at = self._clock()
        self._show()
        return is_refuted

    def _current(self) -> tuple[Trust, str]:
        if self._by_events[0] is Trust.EXACT and self._accusation:
            return Trust.DEGRADED, self._accusation
        if self._by_events[0] is Trust.EXACT and self._is_contradicted:
            return Trust.DEGRADED, "real hits fall short of predictions"
        if self._by_events[0] is Trust.EXACT and self._is_suspected:
            return Trust.DEGRADED, "a predicted hit was missed: the cache may have been reset"
        return self._by_events

    def _show(self) -> None:
        current = self._current()
        if current == self._shown:
            return
        self._shown = current
        if self._on_change is not None:
            self._on_change(TrustChange(self.replica_id, *current, self.epoch))
