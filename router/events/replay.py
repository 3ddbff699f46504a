"""Put the answers of a replay endpoint together. No I/O of its own.

vLLM to 0.32 answers through a ROUTER socket that holds 1000 messages for a slow reader and drops
the rest without a word; the end marker comes all the same. So numbers must follow on, and after a
hole, or an answer long enough to have lost its tail, one asks again from there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from router.blocks import Frame
from router.events.protocol import FramesLost

SURELY_WHOLE_FRAMES: Final = 1000
"""An answer shorter than a ROUTER's default send mark has lost nothing."""

MAX_FRUITLESS_ROUNDS: Final = 3


class ReplayRounds:
    """One replay: rounds of asking, each from the first number that is still missing."""

    def __init__(self, since: int, surely_whole: int = SURELY_WHOLE_FRAMES) -> None:
        self._surely_whole = surely_whole
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
        return at_hole or brought >= self._surely_whole


async def in_rounds(
    ask: Callable[[int], AsyncGenerator[Frame, None]],
    since: int,
    surely_whole: int = SURELY_WHOLE_FRAMES,
) -> AsyncGenerator[Frame, None]:
    """The frames numbered `since` and later, without a hole. `ask`: one answer, to its end marker.

    FramesLost, beside what `ask` raises.
    """
    rounds = ReplayRounds(since, surely_whole)
    goes_on = True
    while goes_on:
        hole_ends = 0
        async with aclosing(ask(rounds.wanted)) as frames:
            async for frame in frames:
                if rounds.is_hole(frame.seq):
                    hole_ends = frame.seq
                    break
                if rounds.is_news(frame.seq):
                    yield frame
        goes_on = rounds.end_round(at_hole=hole_ends > 0)
        if goes_on and rounds.is_stuck:
            raise FramesLost(f"frame {rounds.wanted} is lost", hole_ends)
