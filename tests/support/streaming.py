"""A client that reads one stream to its end and says how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class Streamed:
    """`error`: the error object that the stream ended in, if any."""

    status: int
    headers: dict[str, str]
    text: str = ""
    chunks: int = 0
    is_done: bool = False
    error: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def replica(self) -> str:
        return self.headers.get("x-warmgate-replica", "")

    @property
    def cached_tokens(self) -> int:
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    @property
    def predicted_hit(self) -> int:
        return int(self.headers.get("x-warmgate-predicted-hit-tokens", -1))


async def chat(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    messages: list[dict[str, str]],
    *,
    max_tokens: int = 16,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Streamed:
    """One streamed chat. Raises what aiohttp raises when the connection breaks."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    async with session.post(url + "/v1/chat/completions", json=body, headers=headers) as response:
        names = {name.lower(): value for name, value in response.headers.items()}
        got = Streamed(response.status, names)
        if response.status != 200:
            got.error = (await response.json()).get("error")
            return got
        async for line in response.content:
            _take(got, line.strip())
        return got


def _take(got: Streamed, line: bytes) -> None:
    if not line.startswith(b"data:"):
        return
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        got.is_done = True
        return
    event = json.loads(data)
    got.error = event.get("error", got.error)
    got.usage = event.get("usage") or got.usage
    for choice in event.get("choices", ()):
        if text := choice["delta"].get("content"):
            got.text += text
            got.chunks += 1
