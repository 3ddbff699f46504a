"""Virtual time: a queue of what happens when. Seconds; nothing here waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """Calls actions in the order of their times; those of one instant in the order of booking."""

    now: float = 0.0
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _booked: int = 0

    def clock(self) -> float:
        """What `router`'s parts take for monotonic time."""
        return self.now

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do this then. A time in the past is now."""
        self._booked += 1
        heapq.heappush(self._queue, (max(when, self.now), self._booked, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def run(self, until: float = float("inf")) -> None:
        """Until nothing is booked any more, or that time has come."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, action = heapq.heappop(queue)
            action()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Until that holds, or nothing is booked any more."""
        queue = self._queue
        while queue and not is_done():
            self.now, _, action = heapq.heappop(queue)
            action()
