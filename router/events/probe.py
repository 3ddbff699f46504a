"""A probe of one replica: a prompt that nobody else sends, its events, and its second answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import aiohttp

from router.blocks import BlockStored, Frame, decode_batch
from router.events.protocol import EventSource, LinkDown, LinkUp
from router.replicas import Replica

WORDS: Final = "harbour valley feather window market ladder bridge candle mirror river".split()
PROBE_WORDS: Final = 320  # at least two blocks even of 128 tokens


@dataclass(slots=True)
class Listener:
    """What a replica publishes while the probe runs."""

    events: list[BlockStored] = field(default_factory=list)
    link: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = ""

    async def listen(self, source: EventSource) -> None:
        """Collect until cancelled."""
        async with aclosing(source.frames()) as items:
            async for item in items:
                if isinstance(item, LinkUp):
                    self.link.set()
                elif isinstance(item, LinkDown):
                    self.trouble = item.reason
                elif isinstance(item, Frame):
                    stored = decode_batch(item.payload).events
                    self.events += [event for event in stored if isinstance(event, BlockStored)]

    def of_salt(self, salt: str) -> list[BlockStored]:
        """Events of the prompt with this salt, from its start."""
        chain: list[BlockStored] = []
        tips: set[object] = set()
        for event in self.events:
            keys = (event.extra_keys or [None])[0] or []
            if salt in keys or event.parent_block_hash in tips:
                chain.append(event)
                tips.update(event.block_hashes)
        return chain

    def of_tokens(self, start: list[int]) -> list[BlockStored]:
        """Events of a prompt that starts with these tokens, whatever their keys."""
        return [event for event in self.events if list(event.token_ids[: len(start)]) == start]


@asynccontextmanager
async def listening(source: EventSource) -> AsyncIterator[Listener]:
    """A listener, at work for as long as the block lasts."""
    listener = Listener()
    task = asyncio.create_task(listener.listen(source))
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Probe:
    """A chat request under a salt of its own; `body` is what the client would send."""

    model: str
    salt: str
    text: str

    @classmethod
    def draw(cls, model: str, rng: Random) -> Probe:
        """A fresh one."""
        text = " ".join(rng.choice(WORDS) for _ in range(PROBE_WORDS))
        return cls(model, f"warmgate-check-{rng.getrandbits(48):012x}", text)

    @property
    def body(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": self.text}],
            "cache_salt": self.salt,
            "max_tokens": 1,
        }

    @property
    def raw(self) -> bytes:
        return json.dumps(self.body).encode()


@dataclass(frozen=True, slots=True)
class Engine:
    """Asks one replica over HTTP. aiohttp.ClientError, TimeoutError: it did not answer."""

    session: aiohttp.ClientSession
    replica: Replica
    timeout_s: float

    async def models(self) -> list[str]:
        """The names that it serves."""
        reply = await self._ask("GET", "/v1/models", None)
        return [row["id"] for row in reply.get("data", ())]

    async def answer(self, probe: Probe) -> dict[str, Any]:
        """The reply to the probe; `{"error": …}` if it was refused."""
        return await self._ask("POST", "/v1/chat/completions", probe.body)

    async def tokenize(self, model: str, text: str) -> list[int] | None:
        """Its ids of a plain text; None if it doesn't say."""
        reply = await self._ask("POST", "/tokenize", {"model": model, "prompt": text})
        tokens = reply.get("tokens")
        return tokens if isinstance(tokens, list) else None

    async def _ask(self, method: str, path: str, body: object) -> dict[str, Any]:
        headers = {}
        if self.replica.rank is not None:
            headers["X-data-parallel-rank"] = str(self.replica.rank)
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        url = self.replica.url + path
        async with self.session.request(
            method, url, json=body, headers=headers, timeout=timeout
        ) as response:
            try:
                reply = await response.json(content_type=None)
            except ValueError:
                reply = {}
            if response.status == 200 and isinstance(reply, dict):
                return reply
            return {"error": reply or response.status}
