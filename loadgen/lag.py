"""Is the client itself the bottleneck? How late its event loop runs, and how much CPU it uses."""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Final

from loadgen.client import Clock

TICK_S: Final = 0.02


class LoopLag:
    """Wakes 50 times a second and notes by how much each wake was late (uvloop rounds to 1 ms)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cpu_start_s = time.process_time()
        self.late_s = array("d")

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(TICK_S)
            self.late_s.append(max(0.0, self._clock() - before - TICK_S))

    def cpu_s(self) -> float:
        """CPU seconds of this process since the watch was made."""
        return time.process_time() - self._cpu_start_s
