"""What one request costs from socket to socket, without sockets: `python -m tests.bench.edge`.

A whole runtime with two replicas (`tests.bench.relay_backend`, for probes and events only), one
connection of the clients' server and as many to the engine as it takes, all over transports that
are lists. CPU time of this process, least of many batches, in µs a request; with `--profile`, each
function's own time. `--mib 16`: bodies of so much, an image in them, as they come off a socket, and
what one copy of them takes. Nothing is asserted.
"""

import argparse
import asyncio
import contextlib
import cProfile
import gc
import json
import pstats
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import uvloop

from router import config as settings
from router.gateway.app import build_server
from router.gateway.limits import EdgeLimits
from router.proxy.upstream import Upstream
from router.runtime import Runtime
from router.serve import GARBAGE_EVERY
from tests.bench import peers, relay_backend
from tests.bench.relay import free_port, running, wait_for

READ_BYTES = 256 * 1024
PROMPT_BYTES = 4096
HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n"
    "Content-Type: application/json\r\nAuthorization: Bearer key\r\nContent-Length: {}\r\n\r\n"
)


class ListTransport(asyncio.Transport):
    """Hands what is written to `written`."""

    def __init__(self, written: Callable[[bytes], None]) -> None:
        super().__init__()
        # the one call that counts here
        self.write = written  # type: ignore[assignment,method-assign]
        self.is_closing = lambda: False  # type: ignore[method-assign]

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Each as it is: a socket takes them in one call, and nobody joins them."""
        for data in list_of_data:
            self.write(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class Engine:
    """Answers what is written to a connection in the next turn of the loop."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()

    def connect(self, url: str, on_lost: Callable[[Upstream], None]) -> Upstream:
        upstream = Upstream(url, on_lost)

        def written(data: bytes) -> None:
            if not data.endswith(b"}"):
                # a head whose body comes by itself
                return
            for piece in self._reply(data[-PROMPT_BYTES:]):
                self._loop.call_soon(upstream.data_received, piece)

        upstream.connection_made(ListTransport(written))
        return upstream

    def _reply(self, asked: bytes) -> list[bytes]:
        tokens = relay_backend._prompt_tokens(asked)
        if not self._events:
            return [relay_backend._reply(tokens)]
        chunks = [relay_backend._EVENT_CHUNK] * self._events
        return [relay_backend._STREAM_HEAD, *chunks, relay_backend._end(tokens)]


class Driver:
    """One client that asks the next when it has its answer."""

    def __init__(self, protocol: asyncio.Protocol, requests: list[bytes], ending: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._requests = [pieces(data) for data in requests]
        self._ending = ending
        self._left = 0
        self._done = self._loop.create_future()
        self.last = b""
        protocol.connection_made(ListTransport(self._written))

    async def ask(self, count: int) -> None:
        self._left = count
        self._done = self._loop.create_future()
        self._loop.call_soon(self._loop.call_soon, self._next)
        await self._done

    def _next(self) -> None:
        for piece in self._requests[self._left % len(self._requests)]:
            self._protocol.data_received(piece)

    def _written(self, data: bytes) -> None:
        if not data.endswith(self._ending):
            return
        self.last = data
        self._left -= 1
        if self._left:
            # once what has answered is over
            self._loop.call_soon(self._loop.call_soon, self._next)
        else:
            self._done.set_result(None)


def pieces(data: bytes) -> list[bytes]:
    """As uvloop reads them."""
    return [data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES)]


def with_image(mib: int) -> list[bytes]:
    """A body of so many MiB."""
    url = "data:image/png;base64," + "iVBORw0K" * (mib * 2**17)
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    return [json.dumps(body).encode()]


def copying_us(data: bytes) -> float:
    """CPU time of putting the pieces together."""
    parts, times = pieces(data), []
    for _ in range(20):
        began = time.process_time()
        b"".join(parts)
        times.append(time.process_time() - began)
    return min(times) * 1e6


@contextlib.asynccontextmanager
async def runtime() -> AsyncIterator[Runtime]:
    """A router that knows two replicas and their blocks, its tokenizer's memo warm."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports, events = [free_port(), free_port()], f"tcp://127.0.0.1:{free_port()}"
        prompts = await peers.tokenize([body.encode() for body in peers.bodies(0)])
        (folder / "tokens.json").write_text(json.dumps(prompts))
        told = ("--events", events, "--tokens", str(folder / "tokens.json"))
        command = (sys.executable, "-m", "tests.bench.relay_backend", *map(str, ports), *told)
        stack.enter_context(running(*command))
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        wait_for(urls[0])
        replicas = [{"id": f"r{n}", "url": url, "events": events} for n, url in enumerate(urls)]
        tokens = {"default": str(peers.MODEL_DIR), "remote": False, "judge_share": 0}
        config = settings.parse_config({"replicas": replicas, "tokens": tokens})
        async with Runtime.open(config) as opened:
            deadline = time.monotonic() + 20
            while opened.obstacle() is not None or not opened.index.replicas():
                if time.monotonic() > deadline:
                    raise SystemExit(f"not ready: {opened.obstacle()}")
                await asyncio.sleep(0.05)
            yield opened


def counts() -> list[int]:
    return [len(row) for row in asyncio.run(peers.tokenize([b.encode() for b in peers.bodies(0)]))]


async def measure(arguments: argparse.Namespace, counts: list[int]) -> None:
    events: int = arguments.events
    bodies = [body.encode() for body in peers.bodies(events, counts)]
    if arguments.mib:
        bodies = with_image(arguments.mib)
    requests = [HEAD.format(len(body)).encode() + body for body in bodies]
    async with runtime() as opened:
        engine = Engine(events)
        pool = cast(Any, opened.forwarder.pool)

        async def connect(url: str) -> Upstream:
            upstream = engine.connect(url, pool._lost)
            pool._open.add(upstream)
            return upstream

        pool.connect = connect
        ending = b"0\r\n\r\n" if events else b"}"
        driver = Driver(build_server(opened, EdgeLimits())(), requests, ending)
        # the connection's own task begins to wait
        await asyncio.sleep(0)
        await driver.ask(len(requests) * 2)
        gc.set_threshold(*GARBAGE_EVERY)
        gc.freeze()
        print(driver.last[:600].decode(errors="replace"))
        if arguments.profile:
            profile = cProfile.Profile()
            profile.enable()
            await driver.ask(arguments.requests)
            profile.disable()
            stats = pstats.Stats(profile)
            stats.sort_stats("tottime").print_stats(arguments.profile)
            return
        times = []
        for _ in range(arguments.batches):
            began = time.process_time()
            await driver.ask(arguments.requests)
            times.append((time.process_time() - began) / arguments.requests * 1e6)
        times.sort()
        if arguments.mib:
            print(f"us to copy a body: {copying_us(bodies[0]):.0f}")
        print(f"us a request: least {times[0]:.1f}, median {times[len(times) // 2]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=0, help="of a streamed reply; 0: JSON")
    parser.add_argument("--mib", type=int, default=0, help="of a body with an image; 0: 2 KB chats")
    parser.add_argument("--requests", type=int, default=1000, help="in a batch")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--profile", type=int, default=0, help="show so many functions")
    arguments = parser.parse_args()
    uvloop.run(measure(arguments, counts()))


if __name__ == "__main__":
    main()
