"""discovery.k8s.io/v1 on an API server that has v1beta1 only (1.20): an aggregated API.

The server asks us for the group's v1 after it has checked who asks and what they may (RBAC), as it
does with every aggregated API. We read v1beta1 from that same server and hand it on in v1's words,
lists and watches alike, so versions, deadlines, 410s and what its endpointslice controller makes
of real Services and Pods are the server's own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from kubernetes_asyncio import client

from tests.support.control_plane import ADMIN, ControlPlane
from tests.support.port_forward import own_certificate
from tests.support.processes import until

Thing = dict[str, Any]
GROUP = "discovery.k8s.io"
OLD = f"/apis/{GROUP}/v1beta1/namespaces/{{ns}}/endpointslices"
KIND = {"name": "endpointslices", "namespaced": True, "kind": "EndpointSlice"}


def slice_in_v1(old: Thing) -> Thing:
    """What 1.21 and later make of a v1beta1 slice: the topology became fields."""
    endpoints = []
    for endpoint in old.get("endpoints") or ():
        topology = dict(endpoint.get("topology") or {})
        told = {key: value for key, value in endpoint.items() if key != "topology"}
        named = {"nodeName": "kubernetes.io/hostname", "zone": "topology.kubernetes.io/zone"}
        for field, label in named.items():
            if (value := topology.pop(label, None)) is not None:
                told[field] = value
        endpoints.append({**told, **({"deprecatedTopology": topology} if topology else {})})
    return {**old, "apiVersion": f"{GROUP}/v1", "kind": "EndpointSlice", "endpoints": endpoints}


class SlicesV1:
    """`served`: every slice that was handed on."""

    def __init__(self, plane: ControlPlane, session: aiohttp.ClientSession) -> None:
        self._plane = plane
        self._session = session
        self.served: list[Thing] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(f"/apis/{GROUP}/v1", self._resources)
        app.router.add_get(f"/apis/{GROUP}/v1/namespaces/{{ns}}/endpointslices", self._collection)
        return app

    async def _resources(self, request: web.Request) -> web.Response:
        told = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/v1"}
        return web.json_response(
            {**told, "resources": [{**KIND, "singularName": "", "verbs": ["list", "watch"]}]}
        )

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        url = self._plane.url + OLD.format(ns=request.match_info["ns"])
        headers = {"Authorization": f"Bearer {ADMIN}", "Accept": "application/json"}
        async with self._session.get(
            url, params=request.query, headers=headers, ssl=False
        ) as answer:
            if answer.status != 200 or "watch" not in request.query:
                return self._listing(answer.status, await answer.json())
            response = web.StreamResponse(headers={"content-type": "application/json"})
            await response.prepare(request)
            async for line in answer.content:
                event = json.loads(line)
                if event["object"]["kind"] == "EndpointSlice":
                    event["object"] = self._handed_on(event["object"])
                await response.write(json.dumps(event).encode() + b"\n")
            return response

    def _listing(self, status: int, body: Thing) -> web.Response:
        if status == 200:
            items = [self._handed_on(thing) for thing in body.get("items") or ()]
            body = {**body, "apiVersion": f"{GROUP}/v1", "items": items}
        return web.json_response(body, status=status)

    def _handed_on(self, old: Thing) -> Thing:
        self.served.append(slice_in_v1(old))
        return self.served[-1]


@asynccontextmanager
async def slices_v1(
    plane: ControlPlane, admin: client.ApiClient, folder: Path
) -> AsyncIterator[SlicesV1]:
    """Registered with the server, and available; on leaving it is taken away."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        built = SlicesV1(plane, session)
        runner = web.AppRunner(built.app(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        context = await asyncio.to_thread(own_certificate, folder)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        try:
            await _register(admin, runner.addresses[0][1])
            yield built
        finally:
            await client.ApiregistrationV1Api(admin).delete_api_service(f"v1.{GROUP}")
            await client.CoreV1Api(admin).delete_namespaced_service("slices-v1", "default")
            await runner.cleanup()


async def _register(admin: client.ApiClient, port: int) -> None:
    core, registry = client.CoreV1Api(admin), client.ApiregistrationV1Api(admin)
    # the name is the address: nothing resolves names here
    spec = {"type": "ExternalName", "externalName": "127.0.0.1", "ports": [{"port": port}]}
    await core.create_namespaced_service(
        "default", {"metadata": {"name": "slices-v1"}, "spec": spec}
    )
    where = {"namespace": "default", "name": "slices-v1", "port": port}
    await registry.create_api_service({
        "metadata": {"name": f"v1.{GROUP}"},
        "spec": {
            "group": GROUP, "version": "v1", "service": where, "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 17700, "versionPriority": 16,
        },
    })  # fmt: skip

    async def is_served() -> bool:
        """The condition `Available` comes before that."""
        try:
            await client.DiscoveryV1Api(admin).list_namespaced_endpoint_slice("default")
        except client.ApiException as exc:
            if exc.status not in (404, 503):
                raise
            return False
        return True

    await until(is_served, within_s=60.0)
