"""What `kubectl port-forward` needs of a kubelet: streams from the API server to a pod's ports.

A client opens two streams for each of its connections, `error` and `data`; both name the port.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.spdy import GOAWAY, PING, RST_STREAM, SYN_STREAM, Frame, Reader, Writer
from tests.support.tls import Authority, server_context

PROTOCOL = "portforward.k8s.io"
AddressOf = Callable[[str, str], str]
"""(namespace, pod) → its address."""


@dataclass
class Kubelet:
    """Serves `/portForward/NAMESPACE/POD` over TLS, and refuses all else."""

    address_of: AddressOf
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self.tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rows = head.strip().split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (r.partition(":") for r in rows)}
        path = line.split()[1].partition("?")[0].split("/")
        if path[1] != "portForward" or headers.get("upgrade", "").lower() != "spdy/3.1":
            # newer clients ask for a WebSocket first
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        writer.write(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            f"X-Stream-Protocol-Version: {PROTOCOL}\r\n\r\n".encode()
        )
        forwarded = Forwarded(self.address_of(path[2], path[3]), writer)
        try:
            await forwarded.run(Reader(reader))
        finally:
            await forwarded.close()


@dataclass
class Forwarded:
    """One client's streams. `errors`: its request's id → the stream that errors go to."""

    address: str
    writer: asyncio.StreamWriter
    frames: Writer = field(default_factory=Writer)
    errors: dict[str, int] = field(default_factory=dict)
    pods: dict[int, asyncio.StreamWriter] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, reader: Reader) -> None:
        """Until the client leaves."""
        while True:
            frame = await reader.read()
            if frame.kind == GOAWAY:
                return
            if frame.kind == PING:
                self.writer.write(self.frames.ping(frame.payload))
            elif frame.kind == SYN_STREAM:
                await self._open(frame)
            elif frame.kind == RST_STREAM and frame.stream in self.pods:
                self.pods.pop(frame.stream).close()
            elif frame.kind == 0 and frame.stream in self.pods:
                await self._to_pod(frame)
            await self.writer.drain()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for pod in self.pods.values():
            pod.close()

    async def _open(self, frame: Frame) -> None:
        self.writer.write(self.frames.reply(frame.stream))
        request = frame.headers["requestid"]
        if frame.headers["streamtype"] == "error":
            self.errors[request] = frame.stream
            return
        port = int(frame.headers["port"])
        try:
            reader, pod = await asyncio.open_connection(self.address, port)
        except OSError as exc:
            told = f"connect to {port}: {exc}".encode()
            self.writer.write(self.frames.data(self.errors[request], told, ends=True))
            self.writer.write(self.frames.data(frame.stream, b"", ends=True))
            return
        self.pods[frame.stream] = pod
        back = self._to_client(frame.stream, self.errors[request], reader)
        self.tasks.append(asyncio.create_task(back))

    async def _to_pod(self, frame: Frame) -> None:
        pod = self.pods[frame.stream]
        with suppress(OSError):
            pod.write(frame.payload)
            if frame.ends:
                pod.write_eof()
            await pod.drain()

    async def _to_client(self, stream: int, errors: int, pod: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await pod.read(32768):
                self.writer.write(self.frames.data(stream, data))
                await self.writer.drain()
        for ended in (stream, errors):
            self.writer.write(self.frames.data(ended, b"", ends=True))
        await self.writer.drain()


@asynccontextmanager
async def kubelet(host: str, folder: Path, address_of: AddressOf) -> AsyncIterator[int]:
    """Its port. The API server does not check whose certificate it shows."""
    context = await asyncio.to_thread(own_certificate, folder)
    served = Kubelet(address_of)
    server = await asyncio.start_server(served.accept, host, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(served.tasks):
            task.cancel()
        await asyncio.gather(*served.tasks, return_exceptions=True)


def own_certificate(folder: Path) -> ssl.SSLContext:
    folder.mkdir(parents=True, exist_ok=True)
    return server_context(Authority.found(folder).sign("kubelet"))
