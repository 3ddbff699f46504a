"""Put the answers of a replay endpoint together. Synchronous, no I/O.

vLLM to 0.32 answers through a ROUTER socket that holds 1000 messages for a slow reader and drops
the rest without a word; the end marker comes all the same. So numbers must follow on, and after a
hole, or an answer long enough to have lost its tail, one asks again from there.
"""

from typing import Final

SURELY_WHOLE_FRAMES: Final = 1000
"""An answer shorter than a ROUTER's default send mark has lost nothing."""

MAX_FRUITLESS_ROUNDS: Final = 3


class ReplayRounds:
    """One replay: rounds of asking, each from the first number that is still missing."""

    def __init__(self, since: int) -> None:
        self.wanted = since
        self._has_begun = False
        self._in_round = 0
        self._fruitless = 0

    @property
    def is_stuck(self) -> bool:
        """Several rounds have not brought the wanted frame: it is gone."""
        return self._fruitless >= MAX_FRUITLESS_ROUNDS

    def is_news(self, seq: int) -> bool:
        """Is this frame the next to hand on? False: it was had before."""
        if self._has_begun and seq != self.wanted:
            return False
        if seq < self.wanted:
            return False
        self._has_begun = True
        self.wanted = seq + 1
        self._in_round += 1
        return True

    def is_hole(self, seq: int) -> bool:
        """Are frames missing before this one? (What precedes the very first is merely gone.)"""
        return self._has_begun and seq > self.wanted

    def end_round(self, *, at_hole: bool) -> bool:
        """Close a round, at its end marker or at a hole. True: ask again, from `wanted`."""
        brought, self._in_round = self._in_round, 0
        self._fruitless = 0 if brought else self._fruitless + 1
        return at_hole or brought >= SURELY_WHOLE_FRAMES
