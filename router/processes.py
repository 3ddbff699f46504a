"""`warmgate serve --processes N`: N routers on one port, started over when one of them ends."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from router.config import ConfigError
from router.gateway.speaker import Voice, speaking
from router.settings import ListenSettings, RouterConfig
from router.shared.board import SLOTS, LoadBoard

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
GRACE_S: Final = 10.0
"""Beyond settling and draining, before a process that doesn't end is killed."""


def run(config: RouterConfig, arguments: Sequence[str], processes: int) -> int:
    """Serve until SIGTERM or SIGINT. `arguments`: of `warmgate serve`, for each of them."""
    _check(config, processes)
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="warmgate-", dir=folder) as made, socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # bound, never listening: the port is ours while processes come and go
        s.bind((config.listen.host, config.listen.port))
        board = Path(made) / "load"
        common = [*arguments, f"--port={s.getsockname()[1]}", "--processes=1"]
        common += ["--set=listen.reuse_port=true"]
        common += [f"--set=shared.board={board}", f"--set=shared.processes={processes}"]
        listen = config.listen
        if listen.admin_port is not None:
            common.append("--set=listen.admin_port=0")
        patience_s = listen.settle_s + listen.drain_s + GRACE_S
        return asyncio.run(_serve(Fleet(common, processes, board, patience_s), listen))


async def _serve(fleet: "Fleet", listen: ListenSettings) -> int:
    if listen.admin_port is None:
        return await fleet.serve()
    async with speaking(
        lambda: dict(sorted(fleet.voices.items())), listen.host, listen.admin_port
    ) as port:
        name = f"[{listen.host}]" if ":" in listen.host else listen.host
        fleet.admin_url = f"http://{name}:{port}"
        return await fleet.serve()


def _check(config: RouterConfig, processes: int) -> None:
    if not 1 <= processes <= SLOTS:
        raise ConfigError(f"--processes is {processes}; it can be 1 to {SLOTS}")
    for name, value in (
        ("listen.unix_path", config.listen.unix_path),
        ("events.bind", config.events.bind),
    ):
        if value is not None:
            raise ConfigError(f"{name} can be bound by one process only, not with --processes")
    if config.tenants.keys_file is not None and config.shared.url is None:
        raise ConfigError("tenants.keys_file with --processes needs shared.url: budgets are shared")


@dataclass(slots=True)
class Fleet:
    """The processes, each in its slot. A slot's process is started over until all stop."""

    arguments: Sequence[str]
    count: int
    board_path: Path
    patience_s: float
    restarts: int = 0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    _is_heard: bool = False
    _is_announced: bool = False
    voices: dict[int, Voice] = field(default_factory=dict)
    """Where those that run answer operators."""
    admin_url: str | None = None

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._signal, signal.SIGHUP)
        # a slot beyond theirs: the supervisor makes no load, it only clears others'
        board = LoadBoard(self.board_path, self.count % SLOTS, self.count, time.monotonic)
        try:
            codes = await asyncio.gather(*(self._keep(i, board) for i in range(self.count)))
        finally:
            board.close()
        return max(codes)

    async def _keep(self, slot: int, board: LoadBoard) -> int:
        pause_s = FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            code = await self._run(slot)
            board.clear(slot)
            if self._stopping.is_set():
                # one that had hardly begun dies of the signal itself
                return 0 if code in (0, -signal.SIGTERM) else 1
            if not self._is_heard:
                # wrong settings would be as wrong the next time
                self._stop()
                return code or 1
            self.restarts += 1
            pause_s = FIRST_PAUSE_S if time.monotonic() - started > LONGEST_PAUSE_S else pause_s
            log.error("process %d ended with %d; starting over in %.1f s", slot, code, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
                return 0
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run(self, slot: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router.cli", "serve", *self.arguments),
            f"--set=shared.slot={slot}",
            stdout=asyncio.subprocess.PIPE,
        )
        self._running[slot] = process
        if self._stopping.is_set():
            process.terminate()
        assert process.stdout is not None
        if line := await process.stdout.readline():
            self._hear(slot, process.pid, json.loads(line))
        ended = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        try:
            return await asyncio.wait_for(ended, self.patience_s)
        except TimeoutError:
            process.kill()
            return await process.wait()
        finally:
            del self._running[slot]
            self.voices.pop(slot, None)

    def _hear(self, slot: int, pid: int, ready: Mapping[str, Any]) -> None:
        """A process listens. When all of them do for the first time, whoever started us is told."""
        self.voices[slot] = Voice(pid, ready.get("admin_url", ready["url"]))
        self._is_heard = True
        if self._is_announced or len(self.voices) < self.count:
            return
        self._is_announced = True
        pids = [process.pid for _, process in sorted(self._running.items())]
        line = {"url": ready["url"], "pid": os.getpid(), "processes": pids}
        if self.admin_url is not None:
            line["admin_url"] = self.admin_url
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def _stop(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)
