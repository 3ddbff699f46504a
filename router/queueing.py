"""Requests that wait in the router because no replica could start them in time.

A request that has been sent waits in its engine's queue, whatever becomes free elsewhere and
whoever comes behind it. Here it waits until a replica can start it, and is placed by what is known
then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from router.errors import QueueFull, QueueTimeout, RouterError
from router.routing import Choice
from router.routing.line import Line, Place, may_start

LOOK_EVERY_S: Final = 0.05
"""Predictions change with time alone, and by what other routers tell; what this router's own
requests change is looked at at once."""
LONGEST_RETRY_S: Final = 60.0


class Waited(StrEnum):
    """How a wait ended."""

    SENT = "sent"
    """A replica could start it."""
    LATE = "late"
    """It had waited for as long as it may, and was sent all the same."""
    REFUSED = "refused"
    LEFT = "left"
    """The client did not wait for it."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """`then_refuse`: what has waited for `wait_s` is refused, not sent."""

    slo_ms: float
    requests: int = 1000
    wait_s: float = 30.0
    then_refuse: bool = False


class NoQueue:
    """Requests are sent at once, whatever replicas have to do."""

    slo_ms: float | None = None
    length: int = 0

    def holds(self, model: str, choice: Choice) -> bool:
        return False

    async def wait(self, model: str, tenant: str, look: Callable[[], Choice]) -> Choice:
        return look()

    def changed(self) -> None:
        """Nobody waits for it."""

    def let_all_go(self) -> None:
        """Nobody waits."""


class _Waiting(Place):
    """One who waits, and may be woken."""

    __slots__ = ("woken",)

    def __init__(self, tenant: str) -> None:
        super().__init__(tenant)
        self.woken = asyncio.Event()


@dataclass(slots=True)
class Queue:
    """A line for each model. `on_end` gets how each wait ended, and how long it was in seconds."""

    limits: QueueLimits
    clock: Callable[[], float]
    on_end: Callable[[str, float], None] = lambda how, wait_s: None
    _lines: dict[str, Line] = field(default_factory=dict)
    _is_over: bool = False

    @property
    def slo_ms(self) -> float | None:
        return self.limits.slo_ms

    @property
    def length(self) -> int:
        """Of all lines together."""
        return sum(map(len, self._lines.values()))

    def holds(self, model: str, choice: Choice) -> bool:
        """Whether a request that comes now has to wait. Nobody is passed by."""
        if self._is_over:
            return False
        return model in self._lines or not may_start(choice, self.limits.slo_ms)

    async def wait(self, model: str, tenant: str, look: Callable[[], Choice]) -> Choice:
        """Until a replica can start it: returns what was chosen in that instant. To be booked
        before anything else is awaited. QueueFull, QueueTimeout, and what `look` raises.
        """
        if self.length >= self.limits.requests:
            self.on_end(Waited.REFUSED, 0.0)
            raise QueueFull(
                f"{self.length} requests wait for a replica already.",
                retry_after_s=self._retry_s(look()),
            )
        line, place = self._lines.setdefault(model, Line()), _Waiting(tenant)
        began, how = self.clock(), Waited.LEFT
        line.join(place)
        try:
            choice = await self._turn(line, place, look)
            how = Waited.SENT
            if choice is None:
                choice, how = self._late(look), Waited.LATE
            return choice
        except RouterError:
            how = Waited.REFUSED
            raise
        finally:
            (line.serve if how in (Waited.SENT, Waited.LATE) else line.leave)(place)
            if not line:
                self._lines.pop(model, None)
            self._wake(line)
            self.on_end(how, self.clock() - began)

    def changed(self) -> None:
        """A prompt was computed, or a request is over: the first in each line looks again."""
        for line in self._lines.values():
            self._wake(line)

    def let_all_go(self) -> None:
        """The router stops: who waits is sent now, in order, and nobody waits any more."""
        self._is_over = True
        self.changed()

    async def _turn(self, line: Line, place: _Waiting, look: Callable[[], Choice]) -> Choice | None:
        """What it may start with; None if it waited for too long."""
        try:
            async with asyncio.timeout(self.limits.wait_s):
                while True:
                    if line.first is place:
                        choice = look()
                        if self._is_over or may_start(choice, self.limits.slo_ms):
                            return choice
                    place.woken.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY_S if line.first is place else None):
                            await place.woken.wait()
        except TimeoutError:
            return None

    def _late(self, look: Callable[[], Choice]) -> Choice:
        choice = look()
        if self.limits.then_refuse:
            raise QueueTimeout(
                f"No replica could start it within {self.limits.wait_s:g} s.",
                retry_after_s=self._retry_s(choice),
            )
        return choice

    def _retry_s(self, choice: Choice) -> float:
        """Until the first replica has worked off what it has, by prediction."""
        candidates = choice.candidates.values()
        soonest_ms = min(c.wait_ms + c.memory_wait_ms for c in candidates)
        return min(max(1.0, math.ceil(soonest_ms / 1e3)), LONGEST_RETRY_S)

    def _wake(self, line: Line) -> None:
        if isinstance(first := line.first, _Waiting):
            first.woken.set()
