"""One generation through an OpenAI-compatible API, with what replies tell about caching."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """`sent_at`: `time.monotonic()`. `ttft_s`: to the first data line, or to the whole reply.

    `replica`, `matched_blocks`, `prompt_blocks`, `reason`: the router's headers; None from vLLM.
    """

    sent_at: float
    ttft_s: float
    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    replica: str | None
    matched_blocks: int | None
    prompt_blocks: int | None
    reason: str | None


async def ask(
    session: aiohttp.ClientSession, url: str, body: Body, headers: Mapping[str, str] | None = None
) -> Answer:
    """Post to /v1/chat/completions or /v1/completions, as the body's shape says.

    A streamed reply is read to its end. AssertionError on any status but 200, and on a stream
    without usage.
    """
    path = "chat/completions" if "messages" in body else "completions"
    started = time.monotonic()
    async with session.post(f"{url}/v1/{path}", json=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        if body.get("stream"):
            first_at, text, usage = await _read_stream(reply)
        else:
            whole = await reply.json()
            first_at, text, usage = time.monotonic(), _text(whole), whole["usage"]
        assert usage, "the reply has no usage"
        told = reply.headers
    return Answer(
        sent_at=started,
        ttft_s=first_at - started,
        text=text,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        completion_tokens=usage["completion_tokens"],
        replica=told.get("x-warmgate-replica"),
        matched_blocks=_number(told.get("x-warmgate-matched-blocks")),
        prompt_blocks=_number(told.get("x-warmgate-prompt-blocks")),
        reason=told.get("x-warmgate-reason"),
    )


async def _read_stream(reply: aiohttp.ClientResponse) -> tuple[float, str, Body]:
    first_at: float | None = None
    pieces: list[str] = []
    usage: Body = {}
    async for chunk in _chunks(reply):
        first_at = first_at or time.monotonic()
        pieces.append(_text(chunk))
        usage = chunk.get("usage") or usage
    assert first_at is not None, "the stream has no data"
    return first_at, "".join(pieces), usage


async def _chunks(reply: aiohttp.ClientResponse) -> AsyncIterator[Body]:
    async for line in reply.content:
        data = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and data != b"[DONE]":
            yield json.loads(data)


def _text(part: Body) -> str:
    pieces = []
    for choice in part["choices"]:
        holder = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        pieces.append(holder.get("content") or "")
    return "".join(pieces)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
