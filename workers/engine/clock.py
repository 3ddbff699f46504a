"""Time for the engine's loop: an argument, so that tests can run hours in moments."""

import asyncio
import time
from typing import Final, Protocol

_RESOLUTION_S: Final = 0.0005
"""Shorter waits are not worth a timer: event loops round them to a millisecond or so."""


class Clock(Protocol):
    """Seconds from an arbitrary origin; only differences mean anything."""

    def now(self) -> float:
        """The current time."""

    async def sleep_until(self, moment: float) -> None:
        """Wait; gives other tasks a turn even if the moment has passed."""


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep_until(self, moment: float) -> None:
        remaining = moment - time.monotonic()
        await asyncio.sleep(remaining if remaining > _RESOLUTION_S else 0)
