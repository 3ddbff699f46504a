"""An engine with a Responses API: it keeps its answers in memory, as vLLM and SGLang do."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "m"
PATH = "/v1/responses"


@dataclass(slots=True)
class ResponsesEngine:
    """`kept`: id → what was said until then. `asked`: bodies in order of arrival. `touched`: what
    was done with kept responses: method, id, query."""

    kept: dict[str, list[str]] = field(default_factory=dict)
    touched: list[tuple[str, str, str]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    runner: web.AppRunner | None = None

    async def listen(self) -> None:
        app = web.Application()
        app.router.add_post(PATH, self._respond)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get(PATH + "/{id}", self._touch)
        app.router.add_delete(PATH + "/{id}", self._touch)
        app.router.add_get(PATH + "/{id}/input_items", self._touch)
        app.router.add_post(PATH + "/{id}/cancel", self._touch)
        app.router.add_get("/{any:.*}", self._fine)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    async def _touch(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["id"]
        self.touched.append((request.method, name, request.query_string))
        if name not in self.kept:
            error = {"message": f"Response with id '{name}' not found.", "code": 404}
            return web.json_response({"error": error}, status=404)
        if request.method == "DELETE":
            del self.kept[name]
            return web.json_response({"id": name, "object": "response", "deleted": True})
        response = {"id": name, "object": "response", "model": MODEL, "said": self.kept[name]}
        if request.path.endswith("/cancel"):
            return web.json_response({**response, "status": "cancelled"})
        if request.query.get("stream") != "true":
            return web.json_response(response)
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        await _say(reply, "response.completed", {"response": response})
        return reply

    async def _fine(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        said: list[str] = []
        if (previous := body.get("previous_response_id")) is not None:
            if previous not in self.kept:
                error = {"message": f"Response with id '{previous}' not found.", "code": 404}
                return web.json_response({"error": error}, status=404)
            said = self.kept[previous]
        name = f"resp_{secrets.token_hex(16)}"
        answer = [*said, body["input"]]
        if body.get("store", True):
            self.kept[name] = answer
        # the model's own id must not be taken for the response's
        output = [{"type": "message", "id": f"msg_{secrets.token_hex(4)}", "text": str(answer)}]
        response = {"id": name, "object": "response", "model": MODEL, "output": output}
        if not body.get("stream"):
            return web.json_response(response)
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        begun = {**response, "output": [], "status": "in_progress"}
        await _say(reply, "response.created", {"sequence_number": 0, "response": begun})
        await _say(reply, "response.output_text.delta", {"item_id": "msg_1", "delta": "so"})
        await _say(reply, "response.completed", {"response": response})
        return reply


async def _say(reply: web.StreamResponse, kind: str, fields: dict[str, Any]) -> None:
    data = json.dumps({"type": kind, **fields})
    await reply.write(f"event: {kind}\ndata: {data}\n\n".encode())
