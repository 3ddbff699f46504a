"""An engine with OpenAI's and Anthropic's surface; a test's prompt says what it is to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

WORDS = ["Hello", " there", ",", " world", "."]
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
TOOL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}


@dataclass(slots=True)
class ChatEngine:
    """`say` in a prompt: "status N", "die", "abort", "hang", or anything else for an answer."""

    url: str = ""
    in_flight: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.in_flight += 1
        try:
            return await self._answer(request, body)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        say = str(body.get("prompt") or body["messages"][-1]["content"])
        if say.startswith("status "):
            status = int(say.split()[1])
            error = {"message": f"engine says {status}", "type": "x", "code": status}
            return web.json_response({"error": error}, status=status)
        if say == "hang":
            await asyncio.sleep(60)
        if request.path.endswith("/messages"):
            return await self._messages(request, body, say)
        if body.get("stream"):
            return await self._stream(request, body, say)
        key = "text" if "prompt" in body else "message"
        message: dict[str, Any] = {"role": "assistant", "content": "".join(WORDS)}
        if body.get("tools"):
            message = {"role": "assistant", "content": None, "tool_calls": [TOOL]}
        value = message if key == "message" else "".join(WORDS)
        choice = {"index": 0, key: value, "finish_reason": "stop"}
        kind = "chat.completion" if key == "message" else "text_completion"
        answer = {"id": "c", "object": kind, "created": 1, "model": "m", "choices": [choice]}
        return web.json_response({**answer, "usage": USAGE})

    async def _stream(
        self, request: web.Request, body: dict[str, Any], say: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        is_chat = "messages" in body
        for number, word in enumerate(WORDS):
            if say == "die" and number == 3:
                await response.write(b'data: {"id": "c", "choi')
                assert request.transport is not None
                request.transport.abort()
                return response
            delta: dict[str, Any] = {"delta": {"content": word}} if is_chat else {"text": word}
            if is_chat and body.get("tools"):
                delta = {"delta": {"tool_calls": [{"index": 0, **TOOL}]}}
            choice = {"index": 0, **delta, "finish_reason": None}
            await self._event(response, [choice], None)
            await asyncio.sleep(0)
        await self._event(response, [], USAGE)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, choices: Any, usage: Any) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        event = {**chunk, "choices": choices, "usage": usage}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    async def _messages(
        self, request: web.Request, body: dict[str, Any], say: str
    ) -> web.StreamResponse:
        usage = {"input_tokens": 7, "output_tokens": 5}
        message = {
            "id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None,
            "content": [{"type": "text", "text": "".join(WORDS)}], "stop_reason": "end_turn",
            "usage": usage,
        }  # fmt: skip
        if not body.get("stream"):
            return web.json_response(message)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0,
             "content_block": {"type": "text", "text": ""}},
            *({"type": "content_block_delta", "index": 0,
               "delta": {"type": "text_delta", "text": word}} for word in WORDS),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
             "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        ]  # fmt: skip
        for number, event in enumerate(events):
            if say == "die" and number == 4:
                assert request.transport is not None
                request.transport.abort()
                return response
            name = str(event["type"]).encode()
            await response.write(b"event: %b\ndata: %b\n\n" % (name, json.dumps(event).encode()))
            await asyncio.sleep(0)
        return response

    async def embeddings(self, request: web.Request) -> web.Response:
        row = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
        usage = {"prompt_tokens": 2, "total_tokens": 2}
        return web.json_response({"object": "list", "data": [row], "model": "m", "usage": usage})

    async def models(self, request: web.Request) -> web.Response:
        row = {"id": "m", "object": "model", "created": 1, "owned_by": "x"}
        return web.json_response({"object": "list", "data": [row]})


@asynccontextmanager
async def chat_engine() -> AsyncIterator[ChatEngine]:
    engine = ChatEngine()
    app = web.Application()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
        app.router.add_post(path, engine.chat)
    app.router.add_post("/v1/embeddings", engine.embeddings)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_get("/health", _ok)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield engine
    finally:
        await runner.cleanup()


async def _ok(request: web.Request) -> web.Response:
    return web.Response()
