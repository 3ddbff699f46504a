"""Where frames come from: a live stream that says when it breaks, and a look into the past."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from router.blocks import Frame


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Frames flow from here on. What was published before must be asked for."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """No frame can come until the next `LinkUp`; some may be missed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Quiet:
    """No frame has come for a while. Either none was published, or the newest ones were lost."""


Item: TypeAlias = Frame | LinkUp | LinkDown | Quiet


class ReplayUnavailable(Exception):
    """The past can't be had: no replay endpoint, no answer in time, or frames lost for good."""


class NoReplay(ReplayUnavailable):
    """There is nobody to ask, now or later."""


class FramesLost(ReplayUnavailable):
    """The publisher itself no longer has a frame, and has later ones, from `goes_on_at` on."""

    def __init__(self, what: str, goes_on_at: int) -> None:
        super().__init__(what)
        self.goes_on_at = goes_on_at


class EventSource(Protocol):
    """One publisher's frames."""

    def frames(self) -> AsyncGenerator[Item, None]:
        """Live frames, as they come, between `LinkUp` and `LinkDown`. Ends only when closed.

        `Quiet` now and then while nothing comes.

        Connects, and connects again, by itself. Frames that come while the consumer is busy wait
        for it. MalformedFrame: the publisher speaks another language.
        """
        ...

    def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        """The frames numbered `since` and later that the publisher still has, in order.

        Numbers follow on without a hole, but the first may be greater than `since`. Ends with
        the newest frame. ReplayUnavailable, perhaps after some frames. Bounded in time.
        """
        ...
