"""A Kubernetes API server as far as discovery sees it, over real HTTP, that can go wrong."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

POOL = "/apis/inference.networking.k8s.io/v1/namespaces/{ns}/inferencepools/{name}"


def pod(
    name: str,
    ip: str,
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name, "labels": labels or {"app": "vllm"}, "annotations": annotations or {}
        },
        "spec": {"containers": [{"name": "engine", "image": "x"}]},
        "status": {
            "phase": "Running", "podIP": ip, "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
        },
    }  # fmt: skip


def endpoint_slice(name: str, service: str, *pods: tuple[str, str], **conditions: bool) -> Any:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [ip],
                "conditions": {"ready": True, **conditions},
                "targetRef": {"kind": "Pod", "name": pod_name},
            }
            for pod_name, ip in pods
        ],
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
    }


@dataclass(slots=True)
class FakeApi:
    """`objects` by (plural, name). `is_forbidden`: RBAC says no. `is_silent`: watches are held
    open and told nothing. `compact()`: versions until now are gone. `allows`: an RBAC rule."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    history: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    is_forbidden: bool = False
    is_silent: bool = False
    hangs: bool = False
    pool_labels: dict[str, str] = field(default_factory=dict)
    lists: int = 0
    watches: int = 0
    refused: int = 0
    asked: set[tuple[str, str]] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, plural: str, thing: dict[str, Any]) -> None:
        key = (plural, thing["metadata"]["name"])
        await self._record("MODIFIED" if key in self.objects else "ADDED", plural, thing)

    async def delete(self, plural: str, name: str) -> None:
        await self._record("DELETED", plural, self.objects[plural, name])

    def compact(self) -> None:
        self.oldest = self.version
        self.history.clear()

    async def _record(self, kind: str, plural: str, thing: dict[str, Any]) -> None:
        self.version += 1
        thing = json.loads(json.dumps(thing))
        thing["metadata"]["resourceVersion"] = str(self.version)
        key = (plural, thing["metadata"]["name"])
        if kind == "DELETED":
            self.objects.pop(key)
        else:
            self.objects[key] = thing
        self.history.append((self.version, kind, plural, thing))
        async with self.changed:
            self.changed.notify_all()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(POOL, self._pool)
        app.router.add_get("/api/v1/namespaces/{ns}/{plural}", self._collection)
        app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/{ns}/{plural}", self._collection)
        return app

    async def _pool(self, request: web.Request) -> web.Response:
        self.asked.add(("inferencepools", "get"))
        return web.json_response({"spec": {"selector": {"matchLabels": self.pool_labels}}})

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        plural, is_watch = request.match_info["plural"], request.query.get("watch") == "True"
        self.asked.add((plural, "watch" if is_watch else "list"))
        if self.is_forbidden:
            self.refused += 1
            status = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden"}
            return web.json_response(status, status=403)
        if self.hangs:
            await asyncio.Event().wait()
        selector = request.query.get("labelSelector", "")
        if is_watch:
            return await self._watch(request, plural, selector)
        self.lists += 1
        items = [t for (p, _), t in self.objects.items() if p == plural and matches(selector, t)]
        meta = {"resourceVersion": str(self.version)}
        return web.json_response({"kind": "List", "metadata": meta, "items": items})

    async def _watch(self, request: web.Request, plural: str, selector: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        self.watches += 1
        at, seen = int(request.query["resourceVersion"]), set()
        loop = asyncio.get_running_loop()
        end = loop.time() + float(request.query["timeoutSeconds"])
        seen = {n for (p, n), t in self.objects.items() if p == plural and matches(selector, t)}
        while (left_s := end - loop.time()) > 0 or self.is_silent:
            if at < self.oldest and not self.is_silent:
                status = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}
                await _tell(response, "ERROR", status)
                return response
            for version, kind, of, thing in [e for e in self.history if e[0] > at]:
                at = version
                if of == plural and not self.is_silent:
                    await self._tell_of(response, selector, kind, thing, seen)
            async with self.changed:
                try:
                    async with asyncio.timeout(min(0.2, max(left_s, 0.01))):
                        await self.changed.wait()
                except TimeoutError:
                    pass
        return response

    async def _tell_of(
        self, response: Any, selector: str, kind: str, thing: Any, seen: Any
    ) -> None:
        """As the real one: what leaves the selector is DELETED, what comes back is ADDED."""
        name = thing["metadata"]["name"]
        if matches(selector, thing) and kind != "DELETED":
            await _tell(response, "MODIFIED" if name in seen else "ADDED", thing)
            seen.add(name)
        elif name in seen or kind == "DELETED":
            await _tell(response, "DELETED", thing)
            seen.discard(name)


def matches(selector: str, thing: dict[str, Any]) -> bool:
    labels = thing["metadata"].get("labels", {})
    pairs = [part.split("=") for part in re.split(",", selector) if part]
    return all(labels.get(name) == value for name, value in pairs)


async def _tell(response: web.StreamResponse, kind: str, thing: Any) -> None:
    await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")


@asynccontextmanager
async def serving(fake: FakeApi, port: int = 0) -> AsyncIterator[str]:
    """Its base URL. Leave and enter again with the same port: a restart."""
    runner = web.AppRunner(fake.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(url: str) -> str:
    """The text of a kubeconfig whose server is `url`."""
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    })  # fmt: skip
