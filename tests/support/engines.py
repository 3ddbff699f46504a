"""Minimal engines over HTTP for tests of the gateway's own behaviour."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

AnEngine = TypeVar("AnEngine", bound="PlainEngine")


@dataclass(slots=True)
class PlainEngine:
    """Serves one model without KV events; remembers the requests it got."""

    model: str = "m"
    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        row = {"id": self.model, "object": "model", "max_model_len": 4096, "parent": None}
        return web.json_response({"object": "list", "data": [row]})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((dict(request.headers), body))
        usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
        return web.json_response({"id": "x", "choices": [], "usage": usage, "echo": len(body)})


@asynccontextmanager
async def plain_engine(model: str = "m") -> AsyncIterator[PlainEngine]:
    async with listening(PlainEngine(model)) as engine:
        yield engine


@asynccontextmanager
async def listening(engine: AnEngine) -> AsyncIterator[AnEngine]:
    """The engine at its `url`."""
    app = web.Application(client_max_size=2**27)
    app.router.add_get("/health", engine.health)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/v1/{tail:.*}", engine.complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield engine
    finally:
        await runner.cleanup()


def chat_body(model: str = "m", **fields: object) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": model, "messages": messages, **fields}).encode()
