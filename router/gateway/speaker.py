"""The admin port of `serve --processes N`: one listener that speaks for all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp import web

from router.gateway.admin import METRICS_CONTENT_TYPE, healthz
from router.gateway.replies import json_response
from router.gateway.totals import Totals

INDEX_SLOT: Final = -1
ANSWER_S: Final = 2.0
"""Longest wait for one process: a scrape must not hang on one that is stuck."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A process that runs: its pid, and where it answers."""

    pid: int
    url: str


@dataclass(slots=True)
class Speaker:
    """`voices`: the routers that run now, by slot. `index`: their central index, if any."""

    voices: Callable[[], Mapping[int, Voice]]
    index: Callable[[], Voice | None]
    session: aiohttp.ClientSession
    totals: Totals = field(default_factory=Totals)

    async def readyz(self, request: web.BaseRequest) -> web.Response:
        """200 while any of them is ready: the kernel gives connections to those that listen."""
        answers = {slot: body for slot, (_, body) in (await self._ask_all("/readyz")).items()}
        is_ready = any(body["status"] == "ready" for body in answers.values())
        status = "ready" if is_ready else "not ready"
        return json_response({"status": status, "processes": answers}, 200 if is_ready else 503)

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        """All of them added up; one that does not answer is as it was."""
        voices = dict(self.voices())
        if (index := self.index()) is not None:
            voices[INDEX_SLOT] = index
        texts = await asyncio.gather(*(self._text(voice, "/metrics") for voice in voices.values()))
        for (slot, voice), text in zip(voices.items(), texts, strict=True):
            if text is not None:
                self.totals.learn(slot, voice.pid, text)
        return web.Response(
            body=self.totals.text().encode(), headers={"content-type": METRICS_CONTENT_TYPE}
        )

    async def replicas(self, request: web.BaseRequest) -> web.Response:
        """What each process sees; `replicas` as the first does, for whoever knows one router."""
        answers = await self._ask_all("/debug/replicas")
        processes = [
            {"slot": slot, "pid": voice.pid, **body} for slot, (voice, body) in answers.items()
        ]
        first = processes[0]["replicas"] if processes else []
        whole: dict[str, Any] = {"replicas": first, "processes": processes}
        if (index := self.index()) is not None:
            body = await self._json(index, "/debug/replicas")
            whole["index"] = {"pid": index.pid, **(body or {})}
        return json_response(whole)

    async def snapshot(self, request: web.BaseRequest) -> web.Response:
        """Of the central index; without one, of any of them."""
        index = self.index()
        return await self._first_of(request, [index] if index else self.voices().values())

    async def shadow(self, request: web.BaseRequest) -> web.Response:
        """What each process compared: each sees its own requests."""
        answers = await self._ask_all("/debug/shadow")
        processes = [{"slot": slot, **body} for slot, (_, body) in answers.items()]
        return json_response({"processes": processes})

    async def pass_on(self, request: web.BaseRequest) -> web.Response:
        """What any of them can answer, from the first that does."""
        return await self._first_of(request, self.voices().values())

    async def _first_of(self, request: web.BaseRequest, voices: Iterable[Voice]) -> web.Response:
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OWN}
        for voice in voices:
            url = f"{voice.url}{request.path_qs}"
            try:
                async with self.session.request(
                    request.method, url, data=body, headers=headers
                ) as answer:
                    return web.Response(
                        body=await answer.read(),
                        status=answer.status,
                        content_type=answer.content_type,
                    )
            except (aiohttp.ClientError, TimeoutError):
                continue
        return json_response({"error": {"message": "No process answers."}}, 503)

    async def _ask_all(self, path: str) -> dict[int, tuple[Voice, dict[str, Any]]]:
        voices = self.voices()
        bodies = await asyncio.gather(*(self._json(voice, path) for voice in voices.values()))
        pairs = zip(voices.items(), bodies, strict=True)
        return {slot: (voice, body) for (slot, voice), body in pairs if body is not None}

    async def _json(self, voice: Voice, path: str) -> dict[str, Any] | None:
        try:
            async with self.session.get(voice.url + path) as answer:
                body: dict[str, Any] = await answer.json()
                return body
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def _text(self, voice: Voice, path: str) -> str | None:
        try:
            async with self.session.get(voice.url + path) as answer:
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return None


_OWN: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


@asynccontextmanager
async def speaking(
    voices: Callable[[], Mapping[int, Voice]],
    index: Callable[[], Voice | None],
    host: str,
    port: int,
) -> AsyncIterator[int]:
    """Listen there; yields the port. OSError."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        speaker = Speaker(voices, index, session)
        app = web.Application()
        app.router.add_get("/healthz", healthz)
        app.router.add_get("/readyz", speaker.readyz)
        app.router.add_get("/metrics", speaker.metrics)
        app.router.add_get("/debug/replicas", speaker.replicas)
        app.router.add_post("/debug/explain", speaker.pass_on)
        app.router.add_get("/debug/shadow", speaker.shadow)
        app.router.add_get("/internal/snapshot", speaker.snapshot)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()
