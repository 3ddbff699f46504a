"""An event loop whose clock jumps to the next timer: minutes pass in milliseconds."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


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


class _AtOnce(ThreadPoolExecutor):
    """No thread: what it is given takes no virtual time, and nobody's turn."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001  as a thread hands it on
            done.set_exception(exc)
        return done


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code that does no I/O: only timers, queues, turns, and threads that compute."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self.set_default_executor(_AtOnce(1))

    def time(self) -> float:
        return self._jumping.now_s


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
