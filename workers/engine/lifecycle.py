"""The listening socket: opened, refused for a while, restarted, drained."""

import asyncio
import logging
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from workers.engine.engine import Engine

log = logging.getLogger(__name__)


class RestartAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /restart: connections break, new ones are refused for `down_s`, then a new life begins
    with event number 0. `engine` false only refuses connections; running requests go on."""

    down_s: Annotated[float, Meta(ge=0.0, le=600.0)] = 0.5
    keep_cache: bool = False
    engine: bool = True


class Lifecycle:
    """Owns the port. The port stays the same over all lives."""

    def __init__(self, engine: Engine, host: str, port: int) -> None:
        self._engine = engine
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._restarting: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def open(self, runner: web.AppRunner) -> None:
        """Serve the app. With port 0 the port is known afterwards."""
        self._runner = runner
        await self._listen()

    async def close(self) -> None:
        """Stop listening; a restart in progress is dropped."""
        for task in self._restarting:
            task.cancel()
        await asyncio.gather(*self._restarting, return_exceptions=True)
        await self._refuse()

    def restart_soon(self, ask: RestartAsk) -> None:
        """Restart once the reply to this very request has had time to leave."""
        task = asyncio.create_task(self._restart_after_reply(ask))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def restart(self, ask: RestartAsk) -> None:
        """Go through one death and return when the engine serves again."""
        log.info("going down for %.3g s", ask.down_s)
        await self._refuse()
        if ask.engine:
            await self._engine.restart(keep_cache=ask.keep_cache)
        await asyncio.sleep(ask.down_s)
        if ask.engine:
            await self._engine.revive()
        await self._listen()
        log.info("serving again")

    async def _restart_after_reply(self, ask: RestartAsk) -> None:
        await asyncio.sleep(0.05)
        await self.restart(ask)

    async def _listen(self) -> None:
        if self._runner is None:
            raise RuntimeError("open() first")
        self._site = web.TCPSite(self._runner, self._host, self._port, reuse_address=True)
        await self._site.start()
        if not self._port:
            self._port = self._runner.addresses[0][1]

    async def _refuse(self) -> None:
        if self._site is not None:
            await self._site.stop()
            self._site = None
