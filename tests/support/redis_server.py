"""A real Redis on a free loopback port, ended by its process id."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import until

BINARY = shutil.which("redis-server")
NO_DISK = ("--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0")
needs_redis = pytest.mark.skipif(BINARY is None, reason="redis-server is not installed")


@dataclass(slots=True)
class RedisServer:
    """`flags`: of redis-server. Nothing is kept on disk: a restart is an empty one."""

    port: int
    directory: Path
    flags: tuple[str, ...] = ()
    process: asyncio.subprocess.Process | None = None

    @property
    def is_sentinel(self) -> bool:
        return "--sentinel" in self.flags

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        assert BINARY is not None
        self.process = await asyncio.create_subprocess_exec(
            BINARY, *self.flags, "--port", str(self.port), "--bind", "127.0.0.1",
            "--dir", str(self.directory), *(() if self.is_sentinel else NO_DISK),
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await until(self._answers)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def command(self, *words: str) -> str:
        """One command's first line of answer, over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        writer.write(f"*{len(words)}\r\n{''.join(parts)}".encode())
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line.decode().strip()

    async def _answers(self) -> bool:
        with suppress(OSError):
            return await self.command("PING") == "+PONG"
        return False

    def _signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def redis_server(*flags: str, port: int = 0) -> AsyncIterator[RedisServer]:
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(port or free_port(), Path(directory), flags)
        await server.start()
        try:
            yield server
        finally:
            await server.kill()


@asynccontextmanager
async def delayed(port: int, delay_s: float) -> AsyncIterator[int]:
    """A port whose connections to `port` take `delay_s` longer for every answer."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, s: float) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await asyncio.sleep(s)
                writer.write(data)
        writer.close()

    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", port)
        try:
            with suppress(asyncio.CancelledError):
                await asyncio.gather(pump(reader, back, 0.0), pump(there, writer, delay_s))
        finally:
            for side in (back, writer):
                side.close()
                with suppress(ConnectionError):
                    await side.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
