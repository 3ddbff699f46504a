"""Every background task has an owner here: expected failures restart it, a bug ends the process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Final, Self

from router.blocks import MalformedFrame
from router.errors import RouterError

log = logging.getLogger(__name__)

EXPECTED: Final = (OSError, TimeoutError, RouterError, MalformedFrame)
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
INSIST_S: Final = 2.0
"""A task that has not ended so long after it was cancelled is cancelled again."""

Work = Callable[[], Awaitable[None]]


class Supervisor:
    """Runs named tasks until they are stopped, and waits for the last of them when it closes.

    A task that fails in an expected way (a network, a replica, a malformed message) starts over
    after a pause that doubles from 0.1 s to 5 s. Anything else is a bug: `crashed` gets it, and
    whoever serves ends the process. A task that returns is done.
    """

    def __init__(
        self,
        on_restart: Callable[[str], None] = lambda name: None,
        on_start: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._on_restart = on_restart
        self._on_start = on_start
        self.crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _end(self._tasks.values())
        self._tasks.clear()
        if not self.crashed.done():
            self.crashed.cancel()

    def run(self, name: str, work: Work) -> None:
        """Start `work` under a name that is free. ValueError if it is taken."""
        if name in self._tasks:
            raise ValueError(f"task {name!r} runs already")
        self._on_start(name)
        self._tasks[name] = asyncio.create_task(self._keep(name, work), name=name)

    async def stop(self, name: str) -> None:
        """End a task and wait until its own clean-up is done. An unknown name is no error."""
        task = self._tasks.pop(name, None)
        if task is not None:
            await _end([task])

    async def _keep(self, name: str, work: Work) -> None:
        pause_s = FIRST_PAUSE_S
        clock = asyncio.get_running_loop().time
        try:
            while True:
                started = clock()
                try:
                    return await work()
                except EXPECTED as exc:
                    pause_s = FIRST_PAUSE_S if clock() - started > LONGEST_PAUSE_S else pause_s
                    log.warning("%s: %s; starting over in %.1f s", name, exc, pause_s)
                    self._on_restart(name)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except Exception as exc:
            log.exception("%s: ended by a bug", name)
            if not self.crashed.done():
                self.crashed.set_exception(exc)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel them and wait. Libraries swallow a cancel now and then (`asyncio.wait_for` of Python
    3.11 does, when what it waits for is done in the same instant): then it is said again."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=INSIST_S)
