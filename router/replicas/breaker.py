"""A circuit breaker per replica: what answers badly gets no requests for a while, then one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Position(StrEnum):
    """CLOSED: requests pass. OPEN: none do. HALF_OPEN: one is on its way to find out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerTimes:
    """Opens after `failures` in a row, for `open_s`, doubled each time a trial fails."""

    failures: int = 5
    open_s: float = 5.0
    longest_open_s: float = 60.0


DEFAULT_TIMES: Final = BreakerTimes()


class Breaker:
    """Fed with how requests ended. Clients' faults and full queues are no failures: don't tell it.

    Only failures in a row count, so that a replica with a thousand requests at once and one bad
    one in a hundred stays.
    """

    __slots__ = ("_clock", "_failures", "_open_until", "_pause_s", "_times", "position")

    def __init__(self, clock: Callable[[], float], times: BreakerTimes = DEFAULT_TIMES) -> None:
        self.position = Position.CLOSED
        self._clock = clock
        self._times = times
        self._failures = 0
        self._pause_s = times.open_s
        self._open_until = 0.0

    @property
    def allows(self) -> bool:
        """Whether a request may be sent."""
        if self.position is Position.CLOSED:
            return True
        return self.position is Position.OPEN and self._clock() >= self._open_until

    def begin(self) -> bool:
        """A request is sent. True if it is the trial: its end must then be told."""
        if self.position is not Position.OPEN or not self.allows:
            return False
        self.position = Position.HALF_OPEN
        return True

    def passed(self, *, is_trial: bool) -> None:
        """A request ended well."""
        if self.position is Position.CLOSED:
            self._failures = 0
        elif is_trial:
            self.reset()

    def failed(self, *, is_trial: bool) -> None:
        """A request failed by the replica's fault."""
        if self.position is Position.CLOSED:
            self._failures += 1
            if self._failures >= self._times.failures:
                self._open()
        elif is_trial:
            self._pause_s = min(2 * self._pause_s, self._times.longest_open_s)
            self._open()

    def dropped(self, *, is_trial: bool) -> None:
        """A request ended without saying anything about the replica: the next one is the trial."""
        if is_trial and self.position is Position.HALF_OPEN:
            self.position = Position.OPEN

    def reset(self) -> None:
        """Closed, nothing held against it: it was started anew, or a trial went well."""
        self.position = Position.CLOSED
        self._failures = 0
        self._pause_s = self._times.open_s

    def _open(self) -> None:
        self.position = Position.OPEN
        self._failures = 0
        self._open_until = self._clock() + self._pause_s
