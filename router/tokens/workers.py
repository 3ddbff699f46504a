"""Threads for long texts, made so that a job that never ends does not take the others with it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from router.tokens.protocol import Reason, TokenizeFailed

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """`threads` that work; `max_pending` jobs; `max_stuck` threads that may be lost for good."""

    threads: int = 2
    max_pending: int = 64
    max_stuck: int = 8


DEFAULT_LIMITS: Final = WorkerLimits()


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[Any], Any]
    argument: Any
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    is_running: bool = False
    is_abandoned: bool = False


class Workers:
    """Runs jobs on a few daemon threads, which start when they are needed.

    A job that is waited for no longer is dropped if it has not begun. If it has, its thread counts
    as stuck until it ends, and another thread takes its place. Use it from one event loop.
    """

    def __init__(self, name: str, limits: WorkerLimits = DEFAULT_LIMITS) -> None:
        self.pending = 0
        self.stuck = 0
        self._name = name
        self._limits = limits
        self._alive = 0
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    async def run(self, work: Callable[[A], T], argument: A, until: float) -> T:
        """`work(argument)` on a thread. TokenizeFailed: BUSY, or TIMEOUT at `until` (loop time).

        What `work` does beside its result (filling a memo) is not lost by a timeout.
        """
        job = self._submit(work, argument)
        loop = job.loop
        try:
            await asyncio.wait((job.future,), timeout=max(0.0, until - loop.time()))
        finally:
            if not job.future.done():
                self._abandon(job)
        if not job.future.done():
            raise TokenizeFailed(Reason.TIMEOUT)
        result: T = job.future.result()
        return result

    def _submit(self, work: Callable[[A], T], argument: A) -> _Job:
        no_thread = self.stuck - self._limits.max_stuck >= self._limits.threads
        if no_thread or self.pending >= self._limits.max_pending:
            raise TokenizeFailed(Reason.BUSY)
        loop = asyncio.get_running_loop()
        job = _Job(work, argument, loop, loop.create_future())
        self.pending += 1
        self._jobs.put(job)
        self._start_threads()
        return job

    def _start_threads(self) -> None:
        lost = min(self.stuck, self._limits.max_stuck)
        while self._alive < min(self._limits.threads, self.pending) + lost:
            self._alive += 1
            threading.Thread(target=self._work, name=f"tokens {self._name}", daemon=True).start()

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.is_abandoned = True
        if job.is_running:
            self.stuck += 1
            self._start_threads()

    def _settle(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self.pending -= 1
        if job.is_abandoned and job.is_running:
            self.stuck -= 1
            if self.stuck < self._limits.max_stuck:  # a substitute has been working for it
                self._alive -= 1
                self._jobs.put(None)
        if job.future.cancelled():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
            job.future.exception()  # seen here, because its client may be gone

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                job.is_running = not job.is_abandoned
            result, error = _attempt(job)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                job.loop.call_soon_threadsafe(self._settle, job, result, error)


def _attempt(job: _Job) -> tuple[Any, BaseException | None]:
    if not job.is_running:
        return None, TokenizeFailed(Reason.TIMEOUT)
    try:
        return job.work(job.argument), None
    except BaseException as exc:  # noqa: BLE001 - its waiter judges it
        return None, exc
