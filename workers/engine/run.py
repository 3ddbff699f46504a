"""Build an engine, serve it, take it down again in reverse."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from workers.engine.admin import Admin
from workers.engine.clock import Clock, WallClock
from workers.engine.engine import Engine
from workers.engine.faults import Faults
from workers.engine.lifecycle import Lifecycle, RestartAsk
from workers.engine.options import EngineOptions
from workers.engine.server import Generation, errors_as_json

MAX_BODY_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that serves. URLs stay the same over restarts."""

    engine: Engine
    lifecycle: Lifecycle

    @property
    def url(self) -> str:
        return self.lifecycle.url

    @property
    def model(self) -> str:
        return self.engine.options.model_names[0]

    @property
    def events_url(self) -> str:
        """Rank 0's PUB socket; the others are in `events_urls`."""
        return self.events_urls[0]

    @property
    def replay_url(self) -> str:
        return self.replay_urls[0]

    @property
    def events_urls(self) -> list[str]:
        return [rank.publisher.events_url for rank in self.engine.ranks]

    @property
    def replay_urls(self) -> list[str]:
        return [rank.publisher.replay_url for rank in self.engine.ranks]

    def cached(self, rank: int = 0) -> dict[int, int]:
        """Our own hash of each cached prefix → copies of its last block."""
        return self.engine.ranks[rank].core.cached()

    def set_faults(self, faults: Faults) -> None:
        """From now on this goes wrong; `Faults()` heals."""
        self.engine.set_faults(faults)

    async def restart(self, *, down_s: float = 0.0, keep_cache: bool = False) -> None:
        """Die (connections break, new ones are refused) and serve again."""
        await self.lifecycle.restart(RestartAsk(down_s=down_s, keep_cache=keep_cache))

    async def refuse(self, seconds: float) -> None:
        """Refuse new connections for so long; running requests go on."""
        await self.lifecycle.restart(RestartAsk(down_s=seconds, engine=False))


@asynccontextmanager
async def run_engine(
    options: EngineOptions | None = None, clock: Clock | None = None
) -> AsyncIterator[RunningEngine]:
    """Serve an engine in this event loop for as long as the block lasts."""
    options = options or EngineOptions()
    engine = Engine(options, clock or WallClock())
    lifecycle = Lifecycle(engine, options.host, options.port)
    runner = web.AppRunner(
        _app(engine, lifecycle), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    try:
        await engine.open()
        await runner.setup()
        await lifecycle.open(runner)
        yield RunningEngine(engine, lifecycle)
    finally:
        await lifecycle.close()
        await engine.close()
        await runner.cleanup()


def _app(engine: Engine, lifecycle: Lifecycle) -> web.Application:
    app = web.Application(middlewares=[errors_as_json], client_max_size=MAX_BODY_BYTES)
    generation = Generation(engine)
    app.add_routes(
        [
            web.post("/v1/chat/completions", generation.chat),
            web.post("/v1/completions", generation.complete),
            *Admin(engine, lifecycle).routes(),
        ]
    )
    return app
