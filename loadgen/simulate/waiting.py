"""The router's queue in virtual time: the gateway's line and its rule, without its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.simulate.timeline import Timeline
from router.routing import Choice
from router.routing.line import Line, Place, may_start

LOOK_EVERY_S = 0.05


class _Waiting(Place):
    """`look` chooses anew, `go` sends by that choice."""

    __slots__ = ("go", "look")

    def __init__(
        self, tenant: str, look: Callable[[], Choice], go: Callable[[Choice], None]
    ) -> None:
        super().__init__(tenant)
        self.look, self.go = look, go


@dataclass(slots=True)
class SimQueue:
    """`slo_ms` None: nobody ever waits. `wait_s`: the longest that one does."""

    timeline: Timeline
    slo_ms: float | None = None
    wait_s: float = 30.0
    waited: int = 0
    _line: Line = field(default_factory=Line)
    _looks: bool = False

    def holds(self, choice: Choice) -> bool:
        """Whether a request that comes now waits."""
        if self.slo_ms is None:
            return False
        return bool(self._line) or not may_start(choice, self.slo_ms)

    def wait(self, tenant: str, look: Callable[[], Choice], go: Callable[[Choice], None]) -> None:
        """Send it as soon as a replica can start it, or after the longest wait."""
        waiting = _Waiting(tenant, look, go)
        self._line.join(waiting)
        self.waited += 1
        self.timeline.after(self.wait_s, lambda: self._late(waiting))
        if not self._looks:
            self._looks = True
            self.timeline.after(LOOK_EVERY_S, self._look_again)

    def changed(self) -> None:
        """What replicas have to do has changed: whoever may go does."""
        while self._line and self.slo_ms is not None:
            first = self._line.first
            assert isinstance(first, _Waiting)
            choice = first.look()
            if not may_start(choice, self.slo_ms):
                return
            self._line.serve(first)
            first.go(choice)

    def _look_again(self) -> None:
        self.changed()
        self._looks = bool(self._line)
        if self._looks:
            self.timeline.after(LOOK_EVERY_S, self._look_again)

    def _late(self, waiting: _Waiting) -> None:
        before = len(self._line)
        self._line.leave(waiting)
        if len(self._line) < before:
            waiting.go(waiting.look())
            self.changed()
