"""Processes that are kept running: each in its place, started over when it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from router.gateway.speaker import Voice

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Child:
    """One of ours: `warmgate` with these arguments. `sockets`: what it inherits."""

    name: str
    arguments: Sequence[str]
    sockets: Sequence[int] = ()


@dataclass(slots=True)
class Fleet:
    """Routers, each in its slot, and a central index if there is one.

    `cleared`: a slot's process has ended. The index outlives the routers, so that those that
    drain can still ask it.
    """

    routers: Sequence[Child]
    index: Child | None
    patience_s: float
    cleared: Callable[[int], None]
    voices: dict[int, Voice] = field(default_factory=dict)
    """Where the routers that run answer operators."""
    index_voice: Voice | None = None
    admin_url: str | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _routers_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _heard: set[str] = field(default_factory=set)
    _is_announced: bool = False
    _url: str = ""

    async def serve(self) -> int:
        """Until SIGTERM or SIGINT; SIGHUP is passed on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._signal, signal.SIGHUP)
        indexing = asyncio.ensure_future(self._keep_index())
        codes = await asyncio.gather(*(self._keep_router(i) for i in range(len(self.routers))))
        self._routers_ended.set()
        return max(*codes, await indexing)

    async def _keep_index(self) -> int:
        child = self.index
        if child is None:
            return 0

        def hear(pid: int, ready: Mapping[str, Any]) -> None:
            self.index_voice = Voice(pid, ready["url"])
            self._announce()

        def ended() -> None:
            self.index_voice = None

        return await self._keep(child, self._routers_ended, hear, ended)

    async def _keep_router(self, slot: int) -> int:
        def hear(pid: int, ready: Mapping[str, Any]) -> None:
            self.voices[slot] = Voice(pid, ready.get("admin_url", ready["url"]))
            self._url = ready["url"]
            self._announce()

        def ended() -> None:
            self.voices.pop(slot, None)
            self.cleared(slot)

        return await self._keep(self.routers[slot], self._stopping, hear, ended)

    async def _keep(
        self,
        child: Child,
        stopping: asyncio.Event,
        hear: Callable[[int, Mapping[str, Any]], None],
        ended: Callable[[], None],
    ) -> int:
        """Run it again and again until `stopping`; returns 0 if it then ended well."""
        pause_s = FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            try:
                code = await self._run(child, stopping, hear)
            finally:
                ended()
            if stopping.is_set():
                # one that had hardly begun dies of the signal itself
                return 0 if code in (0, -signal.SIGTERM) else 1
            if child.name not in self._heard:
                # wrong settings would be as wrong the next time
                self._stop()
                return code or 1
            pause_s = FIRST_PAUSE_S if time.monotonic() - started > LONGEST_PAUSE_S else pause_s
            log.error("%s ended with %d; starting over in %.1f s", child.name, code, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
                return 0
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run(
        self,
        child: Child,
        stopping: asyncio.Event,
        hear: Callable[[int, Mapping[str, Any]], None],
    ) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router.cli", *child.arguments),
            stdout=asyncio.subprocess.PIPE,
            pass_fds=child.sockets,
        )
        self._running[child.name] = process
        ended = asyncio.ensure_future(process.wait())
        try:
            if await self._first_line(process, stopping, child.name, hear):
                stopped = asyncio.ensure_future(stopping.wait())
                await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
            if stopping.is_set() and process.returncode is None:
                process.terminate()
            return await asyncio.wait_for(ended, self.patience_s)
        except TimeoutError:
            process.kill()
            return await process.wait()
        finally:
            del self._running[child.name]

    async def _first_line(
        self,
        process: asyncio.subprocess.Process,
        stopping: asyncio.Event,
        name: str,
        hear: Callable[[int, Mapping[str, Any]], None],
    ) -> bool:
        """Wait until it says that it is up. False: it won't."""
        assert process.stdout is not None
        reading = asyncio.ensure_future(process.stdout.readline())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait((reading, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not reading.done():
            reading.cancel()
            return False
        if line := reading.result():
            self._heard.add(name)
            hear(process.pid, json.loads(line))
        return bool(line)

    def _announce(self) -> None:
        """When all are up for the first time, whoever started us is told."""
        is_complete = len(self.voices) == len(self.routers)
        if self.index is not None:
            is_complete &= self.index_voice is not None
        if self._is_announced or not is_complete:
            return
        self._is_announced = True
        pids = [voice.pid for _, voice in sorted(self.voices.items())]
        line: dict[str, Any] = {"url": self._url, "pid": os.getpid(), "processes": pids}
        if self.index_voice is not None:
            line["index"] = self.index_voice.pid
        if self.admin_url is not None:
            line["admin_url"] = self.admin_url
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def _stop(self) -> None:
        self._stopping.set()

    def _signal(self, number: int) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)
