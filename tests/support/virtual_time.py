"""An event loop whose clock jumps to the next timer: minutes pass in milliseconds."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Never waits: what it was told to wait is how far the clock goes on."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if timeout is None and not ready:
            raise RuntimeError("all tasks wait for something that no timer will bring")
        if not ready:
            self.now_s += timeout or 0.0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code that does no I/O: only timers, queues and turns."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
