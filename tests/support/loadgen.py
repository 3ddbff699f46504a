"""A scripted OpenAI-compatible server: says exactly what a test wants, cut where it wants."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

EXCERPT = Path(__file__).parents[1] / "data" / "traces" / "mooncake_conversation_300.jsonl"
DONE = b"data: [DONE]\n\n"


def sse(document: object) -> bytes:
    """One event with a JSON document."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: object) -> bytes:
    """One chat completion chunk."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return sse({"object": "chat.completion.chunk", "choices": [choice], **more})


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """A usage object; without `cached`, the engine is silent about its cache."""
    found: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return found


def usage_chunk(prompt: int, completion: int, cached: int | None = None) -> bytes:
    """The last chunk of a stream with include_usage: no choices."""
    return sse({"choices": [], "usage": usage(prompt, completion, cached)})


ROLE = chunk({"role": "assistant", "content": ""})


def plain_answer(words: Sequence[str], prompt: int = 10, cached: int = 0) -> bytes:
    """Role, one delta per word, finish, usage, end."""
    deltas = b"".join(chunk({"content": f"{word} "}) for word in words)
    last = chunk({}, "length") + usage_chunk(prompt, len(words), cached)
    return ROLE + deltas + last + DONE


@dataclass
class Script:
    """`parts`: bytes to write, or seconds to wait, as an engine would between tokens.

    `is_cut`: the connection is closed after the last part, in the middle of the response.
    """

    parts: Sequence[bytes | float] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False


Answer = Callable[[dict[str, Any]], Script]


@dataclass
class ScriptedServer:
    """`asked`: bodies that came, in order; `headers` likewise."""

    answer: Answer
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    open_now: int = 0
    open_most: int = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.headers.append({key.lower(): value for key, value in request.headers.items()})
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            return await self._play(request, self.answer(body))
        finally:
            self.open_now -= 1

    async def _play(self, request: web.Request, script: Script) -> web.StreamResponse:
        response = web.StreamResponse(status=script.status, headers=script.headers)
        response.content_type = "text/event-stream"
        await response.prepare(request)
        for part in script.parts:
            if isinstance(part, bytes):
                await response.write(part)
            else:
                await asyncio.sleep(part)
        if script.is_cut and request.transport is not None:
            request.transport.close()
            return response
        await response.write_eof()
        return response


class WordEngine:
    """Words are tokens, the cache is unlimited: what it reports is what was best possible.

    Answers `max_tokens` words. Keeps blocks of `block_size` words, the answer's but its last too.
    """

    def __init__(self, block_size: int = 16) -> None:
        self.block_size = block_size
        self._ids: dict[str, int] = {}
        self._cached: set[tuple[int, ...]] = set()
        self._answers = 0

    def tokens(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Every message as a token for its role, then its words."""
        words = [w for m in messages for w in (f"<{m['role']}>", *m["content"].split())]
        return [self._ids.setdefault(word, len(self._ids)) for word in [*words, "<assistant>"]]

    def __call__(self, body: dict[str, Any]) -> Script:
        prompt = self.tokens(body["messages"])
        cached = self._hit(prompt)
        self._answers += 1
        words = [f"answer{self._answers}-{n}" for n in range(body["max_tokens"])]
        answer = [self._ids.setdefault(word, len(self._ids)) for word in words]
        self._keep([*prompt, *answer[:-1]])
        reply = plain_answer(words, len(prompt), cached)
        return Script([reply], headers={"x-warmgate-replica": "r1"})

    async def tokenize(self, request: web.Request) -> web.Response:
        """vLLM's /tokenize."""
        body = await request.json()
        tokens = self.tokens(body["messages"])
        return web.json_response({"tokens": tokens, "count": len(tokens)})

    def _blocks(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        size = self.block_size
        return [tuple(tokens[: n + size]) for n in range(0, len(tokens) - size + 1, size)]

    def _hit(self, prompt: Sequence[int]) -> int:
        hit = 0
        for block in self._blocks(prompt[: len(prompt) - 1]):
            if block not in self._cached:
                break
            hit = len(block)
        return hit

    def _keep(self, tokens: Sequence[int]) -> None:
        self._cached.update(self._blocks(tokens))


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[ScriptedServer]:
    """A server on a free port of the loopback, until the block ends."""
    server = ScriptedServer(answer)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", server.generate)
    app.router.add_post("/v1/completions", server.generate)
    if isinstance(answer, WordEngine):
        app.router.add_post("/tokenize", answer.tokenize)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def warmgate_load(*arguments: str) -> tuple[int, str, str]:
    """The real program: (exit code, stdout, stderr)."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(50):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
