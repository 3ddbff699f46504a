"""A listener in a thread of its own: probes are answered whatever the data path has to do."""

import asyncio
import threading
from collections.abc import Callable

from aiohttp import web

from router.gateway.server import EdgeServer

START_S = 10.0


class Aside:
    """Serves what `build` gives, called in the thread. Its handlers only read, and what changes by
    being read they have the data path's thread read: see `admin.see`."""

    def __init__(self, build: Callable[[], EdgeServer], host: str, port: int) -> None:
        self.port = port
        self._build = build
        self.host = host
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._is_up = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    def start(self) -> None:
        """Listen; `port` is then the one that was bound. OSError if it can't."""
        self._thread.start()
        self._is_up.wait(START_S)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Close it and wait for the thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as exc:
            self._failure = exc
            self._is_up.set()
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        runner = web.ServerRunner(self._build(), shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
            self.port = runner.addresses[0][1]
            self._is_up.set()
            await self._stopping.wait()
        finally:
            await runner.cleanup()
