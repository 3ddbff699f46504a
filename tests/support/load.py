"""A router under more load than it can take, and a prober that is not part of the load."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.support.faults import CHAT, MODEL, Bed
from tests.support.processes import ROOT

MOST_MS = 100.0
PATHS = ("/healthz", "/readyz", "/metrics")

_HAMMER = """
import asyncio, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
message = sys.stdin.buffer.read()
async def ask():
    reader, writer = await asyncio.open_connection(host, port)
    while True:
        writer.write(message)
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\\r\\n")[0]
        await reader.readexactly(int(length))
        print(len(head), flush=True)
async def main():
    await asyncio.gather(*(ask() for _ in range(count)))
asyncio.run(main())
"""
"""A client of its own process: asks, reads, asks again; a line for each answer."""


@asynccontextmanager
async def hammered(run: Bed, clients: int) -> AsyncIterator[None]:
    """`clients` ask as fast as they are answered, from another process; begun when it yields."""
    url = urlsplit(run.router.url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HAMMER, str(url.hostname), str(url.port), str(clients)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(_message())
        process.stdin.close()
        async with asyncio.timeout(20):
            for _ in range(2 * clients):
                assert await process.stdout.readline()
        reading = asyncio.create_task(process.stdout.read())
        yield
        assert process.returncode is None
        process.kill()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def ask_probes(admin_url: str, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each answer, by path. Blocking: to be run in a thread of its own."""
    took: dict[str, list[float]] = defaultdict(list)
    address = urlsplit(admin_url).netloc
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in PATHS:
            began = time.monotonic()
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            connection.close()
            took[path].append((time.monotonic() - began) * 1e3)
            assert response.status == 200, path
        time.sleep(0.01)
    return took


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _message() -> bytes:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]})
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()
