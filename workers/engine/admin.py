"""Everything but generation: models, tokens, health, metrics, cache, faults."""

import time
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from workers.engine.asks import Chat, DetokenizeAsk, Refused, TokenizeAsk, read_ask
from workers.engine.engine import Engine
from workers.engine.faults import HEALTHY, parse_faults
from workers.engine.files import ModelFiles
from workers.engine.lifecycle import Lifecycle, RestartAsk
from workers.engine.publisher import HIGH_WATER_MARK

VERSION: Final = "0.32.0+warmgate"
"""The vLLM release whose manners these are; routers may look at it."""


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


class Admin:
    """The handlers; `routes` lists them."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._registry = CollectorRegistry()
        self._registry.register(engine.collector)
        self._created = int(time.time())
        self._files = ModelFiles()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/ping", self.health),
            web.get("/version", self.version),
            web.get("/load", self.load),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
            web.get("/kv_event_sources", self.event_sources),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.get("/model_files", self.model_files),
            web.get("/model_files/{name}", self.model_file),
            web.post("/reset_prefix_cache", self.reset_cache),
            web.get("/cache", self.cache),
            web.get("/faults", self.get_faults),
            web.post("/faults", self.set_faults),
            web.delete("/faults", self.clear_faults),
            web.post("/restart", self.restart),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """200 while the cores run (also while draining, as in vLLM)."""
        return web.Response(status=200 if self._engine.alive else 503)

    async def version(self, _: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def load(self, _: web.Request) -> web.Response:
        return _json({"server_load": self._engine.load})

    async def model_files(self, _: web.Request) -> web.Response:
        """What there is of tokenizer and template, with sizes and digests."""
        return _json({"files": self._files.listed})

    async def model_file(self, request: web.Request) -> web.Response:
        content = self._files.get(request.match_info["name"])
        if content is None:
            raise web.HTTPNotFound
        return web.Response(body=content, content_type="application/octet-stream")

    async def metrics(self, _: web.Request) -> web.Response:
        """The text format, whatever the client accepts, as vLLM."""
        self._engine.update_gauges()
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def models(self, _: web.Request) -> web.Response:
        """Served names first, then adapters, which name their base model as parent."""
        options = self._engine.options
        root = options.model_names[0]
        cards = [self._card(name, root, None) for name in options.model_names]
        cards += [self._card(name, name, root) for name in options.adapters]
        return _json({"object": "list", "data": cards})

    async def event_sources(self, _: web.Request) -> web.Response:
        """Where each rank's events come from, as vLLM since 0.31."""
        return _json(
            {
                str(number): {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": rank.publisher.events_url,
                    "replay_endpoint": rank.publisher.replay_url,
                    "buffer_steps": self._engine.options.buffer_steps,
                    "hwm": HIGH_WATER_MARK,
                    "max_queue_size": HIGH_WATER_MARK,
                    "topic": self._engine.options.topic,
                }
                for number, rank in enumerate(self._engine.ranks)
            }
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        """Token ids of a text, or of a chat as its template renders it."""
        body = await request.read()
        ask = read_ask(TokenizeAsk, body)
        self._engine.adapter_of(ask.model)
        text = ask.prompt or ""
        if ask.messages is not None:
            text = read_ask(Chat, body).render(self._engine.tokenizer)
        tokens = await self._engine.encode(text)
        strings = self._engine.tokenizer.strings(tokens) if ask.return_token_strs else None
        return _json(
            {
                "count": len(tokens),
                "max_model_len": self._engine.sizes.max_model_len,
                "tokens": tokens.tolist(),
                "token_strs": strings,
            }
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        ask = read_ask(DetokenizeAsk, await request.read())
        try:
            return _json({"prompt": self._engine.tokenizer.decode(ask.tokens)})
        except OverflowError as exc:
            raise Refused(400, "Token ids must be between 0 and 4294967295") from exc

    async def reset_cache(self, _: web.Request) -> web.Response:
        """`success` is false while blocks are in use on any rank; other ranks are reset."""
        done = [await rank.core.reset_cache() for rank in self._engine.ranks]
        return _json({"success": all(done)})

    async def cache(self, _: web.Request) -> web.Response:
        """What is really cached, per rank, to compare an index with. Not in vLLM.

        `blocks`: our own hash of each cached prefix (`router.blocks.hash_blocks`, seeded with salt
        and adapter) → copies of its last block. What a step stores shows when it has run,
        what it evicts when it begins.
        """
        size = self._engine.sizes.block_size
        ranks = {
            str(number): {
                "block_size": size,
                "num_blocks": rank.core.pool.num_blocks,
                "used_blocks": rank.core.pool.used_count,
                "free_blocks": rank.core.pool.free_count,
                "blocks": {str(key): count for key, count in rank.core.cached().items()},
            }
            for number, rank in enumerate(self._engine.ranks)
        }
        return _json(ranks)

    async def get_faults(self, _: web.Request) -> web.Response:
        return _json(self._engine.faults.current)

    async def set_faults(self, request: web.Request) -> web.Response:
        """Replace all faults; `{}` heals."""
        try:
            self._engine.set_faults(parse_faults(await request.read()))
        except ValueError as exc:
            raise Refused(400, str(exc)) from exc
        return _json(self._engine.faults.current)

    async def clear_faults(self, _: web.Request) -> web.Response:
        self._engine.set_faults(HEALTHY)
        return _json(self._engine.faults.current)

    async def restart(self, request: web.Request) -> web.Response:
        """Answer, then die and come back (see `RestartAsk`)."""
        ask = read_ask(RestartAsk, await request.read() or b"{}")
        self._lifecycle.restart_soon(ask)
        return _json({"restarting": True})

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "warmgate",
            "root": root,
            "parent": parent,
            "max_model_len": self._engine.sizes.max_model_len if parent is None else None,
            "permission": [],
        }
