"""What a frame's number says. Synchronous, no I/O."""

from array import array
from enum import StrEnum
from typing import Final

from xxhash import xxh3_64_intdigest

_REMEMBERED: Final = 16_384  # vLLM replays 10,000 frames by default; those may come live as well


class Verdict(StrEnum):
    """What to do with a frame."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTART = "restart"


class SequenceTracker:
    """Follows one publisher's numbers: from 0, one more per frame, from 0 again after a restart.

    - The number expected: NEXT. A greater one: GAP (also for the first frame of all: we came
      late, and the past must be asked for).
    - A smaller one is DUPLICATE if the same bytes came under that number among the last 16,384
      frames: live frames that a replay has brought already. Else it is RESTART: each payload
      carries the time of its making, so other bytes under a used number are a new publisher's,
      and a number too old to be remembered is taken for one, because forgetting is safe.

    Only NEXT moves the tracker; after the other verdicts the caller says how to go on.
    """

    def __init__(self) -> None:
        self._digests = array("Q")
        self.expected = 0
        self._oldest = 0

    @property
    def last(self) -> int | None:
        """Number of the newest frame taken; None before the first."""
        return self.expected - 1 if self._digests else None

    def observe(self, seq: int, payload: bytes) -> Verdict:
        """Judge a frame, and take it if it is the next."""
        if seq == self.expected:
            self._remember(seq, payload)
            return Verdict.NEXT
        if seq > self.expected:
            return Verdict.GAP
        if seq >= self._oldest and self._digests[seq % _REMEMBERED] == xxh3_64_intdigest(payload):
            return Verdict.DUPLICATE
        return Verdict.RESTART

    @property
    def position(self) -> tuple[int, int] | None:
        """Number and digest of the newest frame taken: where a copy of the index goes on."""
        last = self.last
        return None if last is None else (last, self._digests[last % _REMEMBERED])

    def has_taken(self, seq: int, digest: int) -> bool:
        """Was this frame among the last ones taken?"""
        is_known = self._oldest <= seq < self.expected
        return is_known and self._digests[seq % _REMEMBERED] == digest

    def stand_at(self, seq: int, digest: int) -> None:
        """As if all frames up to `seq`, and no others, had been taken."""
        self._digests = array("Q", bytes(8 * _REMEMBERED))
        self._digests[seq % _REMEMBERED] = digest
        self.expected, self._oldest = seq + 1, seq

    def skip_to(self, seq: int) -> None:
        """Give up the frames before `seq`: it is the next one."""
        self._digests = array("Q")
        self.expected = self._oldest = seq

    def restart(self) -> None:
        """A new epoch: nothing seen, 0 is the next."""
        self.skip_to(0)

    def _remember(self, seq: int, payload: bytes) -> None:
        digest = xxh3_64_intdigest(payload)
        if not self._digests:
            self._digests = array("Q", bytes(8 * _REMEMBERED))
        self._digests[seq % _REMEMBERED] = digest
        self.expected = seq + 1
        self._oldest = max(self._oldest, self.expected - _REMEMBERED)
