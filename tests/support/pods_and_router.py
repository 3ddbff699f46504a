"""Real engines that stand for pods, and a real router that finds them by an API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.support import kube
from tests.support.processes import MODEL_DIR, Program, start, start_engine, until

PutPod = Callable[[dict[str, Any]], Awaitable[None]]


def pod_of(name: str, engine: Program, **labels: str) -> dict[str, Any]:
    """The pod `name`, ready, whose annotations point to the engine's ports."""
    keys = {"port": "url", "events-port": "events_url", "replay-port": "replay_url"}
    ports = {f"warmgate/{k}": str(engine.ready[v]).rpartition(":")[2] for k, v in keys.items()}
    named = {name.replace("_", "/"): value for name, value in labels.items()}
    return kube.pod(name, "127.0.0.1", labels={"app": "vllm", **named}, annotations=ports)


@dataclass(slots=True)
class PodsAndRouter:
    """`engines[i]` is the pod `pod-{i}`."""

    engines: list[Program]
    router: Program
    session: aiohttp.ClientSession

    async def rows(self) -> dict[str, dict[str, Any]]:
        async with self.session.get(self.router.url + "/debug/replicas") as response:
            return {row["id"]: row for row in (await response.json())["replicas"]}

    async def healthy(self) -> set[str]:
        return {name for name, row in (await self.rows()).items() if row["is_healthy"]}

    async def reach(self, *names: str, within_s: float = 15.0) -> float:
        """Until exactly these are healthy; returns how many seconds that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def are() -> bool:
            return await self.healthy() == set(names)

        await until(are, within_s)
        return loop.time() - began

    async def ask(self, model: str = "") -> tuple[int, str]:
        """Status of a short generation, and who served it."""
        asked = model or self.engines[0].ready["model"]
        body = {"model": asked, "prompt": "Hello", "max_tokens": 1}
        async with self.session.post(self.router.url + "/v1/completions", json=body) as reply:
            await reply.read()
            return reply.status, reply.headers.get("x-warmgate-replica", "")


@asynccontextmanager
async def pods_and_router(
    put: PutPod, settings: Mapping[str, str | Path], count: int = 2
) -> AsyncIterator[PodsAndRouter]:
    """`settings`: of the section `discovery`, but for what is the same in all tests."""
    engines: list[Program] = []
    router: Program | None = None
    same = {"source": "kubernetes", "selector": "app=vllm", "relist_s": "600"}
    flags = [f"--set=discovery.{name}={value}" for name, value in {**same, **settings}.items()]
    async with aiohttp.ClientSession() as session:
        try:
            for number in range(count):
                engines.append(await start_engine())
                await put(pod_of(f"pod-{number}", engines[-1]))
            router = await start(
                "router.cli", "serve", "--port", "0", "--set=health.interval_s=1",
                "--tokenizer", str(MODEL_DIR), *flags,
            )  # fmt: skip
            built = PodsAndRouter(engines, router, session)
            await built.reach(*(f"pod-{number}" for number in range(count)))
            yield built
        finally:
            for program in filter(None, (router, *engines)):
                await program.kill()
