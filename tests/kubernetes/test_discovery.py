"""Discovery against a real API server, and every way in which watching one goes wrong."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes_asyncio import client

from router.replicas import kube_api
from router.replicas.kube_objects import replicas_of_pod
from router.replicas.kubernetes import KubernetesDiscovery
from router.replicas.ports import Ports
from tests.kubernetes.conftest import ROUTER
from tests.support import kube
from tests.support.control_plane import Cable
from tests.support.discoveries import followed
from tests.support.inference_pools import create_pool, define_pools, pool
from tests.support.processes import until

A, B, C = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))
RIGHTS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [kube_api.POOL_GROUP], "resources": ["inferencepools"], "verbs": ["get"]},
]


@dataclass
class Seen:
    """The real API, with what was asked of it. `old`: the version that its next list claims."""

    api: kube_api.KubernetesApi
    old: str = ""
    lists: int = 0
    failures: list[str] = field(default_factory=list)
    watched: asyncio.Event = field(default_factory=asyncio.Event)

    async def list(self) -> bytes:
        try:
            body = await self.api.list()
        except Exception as exc:
            self.failures.append(str(exc))
            raise
        self.lists += 1
        if not self.old:
            return body
        listing = kube_json(body)
        listing["metadata"]["resourceVersion"], self.old = self.old, ""
        return kube_text(listing)

    async def watch(self, version: str, *, for_s: float) -> AsyncGenerator[bytes, None]:
        self.watched.set()
        async for data in self.api.watch(version, for_s=for_s):
            yield data


def kube_json(body: bytes) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(body)
    return tree


def kube_text(thing: dict[str, Any]) -> bytes:
    return json.dumps(thing).encode()


async def grant(pods):
    """The router's role in the pods' namespace."""
    rbac = client.RbacAuthorizationV1Api(pods.api)
    meta = {"metadata": {"name": "router"}}
    await rbac.create_namespaced_role(pods.namespace, {**meta, "rules": RIGHTS})
    await bind(pods)


async def bind(pods):
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "router"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ROUTER}
    body = {"metadata": {"name": "router"}, "roleRef": reference, "subjects": [subject]}
    rbac = client.RbacAuthorizationV1Api(pods.api)
    await rbac.create_namespaced_role_binding(pods.namespace, body)


async def unbind(pods):
    rbac = client.RbacAuthorizationV1Api(pods.api)
    await rbac.delete_namespaced_role_binding("router", pods.namespace)


@asynccontextmanager
async def following(plane, pods, *, server="", relist_s=20.0, select=None, old=""):
    """Two pods, followed with the router's own rights; yields what was seen and what was asked."""
    await grant(pods)
    await pods.put(kube.pod("a", "10.0.0.1"))
    await pods.put(kube.pod("b", "10.0.0.2"))
    async with await plane.api_client(ROUTER, server) as api:
        chosen = select(api) if select else kube_api.constant("app=vllm")
        asked = Seen(kube_api.pods(api, pods.namespace, chosen), old)
        discovery = KubernetesDiscovery(
            asked, lambda thing: replicas_of_pod(thing, Ports()), relist_s=relist_s
        )
        async with followed(discovery) as seen:
            await seen.reach(A, B, within_s=20.0)
            await asked.watched.wait()
            yield seen, asked


async def test_readiness_termination_labels_and_deletes_are_honoured_within_a_second(plane, pods):
    async with following(plane, pods) as (seen, _):
        await pods.status("b", kube.pod("b", "10.0.0.2", ready=False)["status"])
        await seen.reach(A, within_s=1.0)
        await pods.status("b", kube.pod("b", "10.0.0.2")["status"])
        await seen.reach(A, B, within_s=1.0)
        await pods.label("b", app="other")
        await seen.reach(A, within_s=1.0)
        await pods.label("b", app="vllm")
        await seen.reach(A, B, within_s=1.0)
        await pods.end("b")
        await seen.reach(A, within_s=1.0)
        await pods.put(kube.pod("c", "10.0.0.3"))
        await seen.reach(A, C, within_s=1.0)
        await pods.delete("c")
        await seen.reach(A, within_s=1.0)


async def test_a_version_that_is_gone_is_listed_anew_at_once(plane, pods):
    # a server that was started anew knows nothing of the versions before
    plane.kill("api")
    plane.start_api()
    await plane.ready()
    async with following(plane, pods, old="1") as (seen, asked):

        async def was_listed_again():
            return asked.lists == 2

        await until(was_listed_again, within_s=2.0)
        await pods.delete("b")
        await seen.reach(A, within_s=1.0)


async def test_a_connection_that_falls_silent_hides_a_delete_for_30_s_at_most(plane, pods):
    async with Cable(plane.port) as cable:
        server = f"https://127.0.0.1:{cable.port}"
        async with following(plane, pods, server=server) as (seen, _):
            cable.is_dead = True
            loop = asyncio.get_running_loop()
            began = loop.time()
            await pods.delete("b")
            loop.call_later(15.0, setattr, cable, "is_dead", False)
            await seen.reach(A, within_s=30.0)
            print(f"\na delete behind a silent watch: seen after {loop.time() - began:.1f} s")


async def test_a_delete_while_the_watch_is_cut_off_is_seen_when_it_is_back(plane, pods):
    async with Cable(plane.port) as cable:
        server = f"https://127.0.0.1:{cable.port}"
        async with following(plane, pods, server=server) as (seen, _):
            cable.is_dead = True
            cable.cut()
            await pods.delete("b")
            cable.is_dead = False
            cable.cut()
            await seen.reach(A, within_s=10.0)
            assert all(seen.sets)


async def test_a_killed_api_server_leaves_the_replicas_and_is_followed_when_it_is_back(plane, pods):
    async with following(plane, pods) as (seen, asked):
        plane.kill("api")

        async def was_missed():
            return bool(asked.failures)

        try:
            await until(was_missed, within_s=10.0)
            assert len(seen.sets[-1]) == 2
        finally:
            plane.start_api()
        await plane.ready()
        await pods.delete("b")
        await seen.reach(A, within_s=10.0)
        assert all(seen.sets), "an empty set while the server was away"


async def test_lost_rights_leave_the_replicas_and_regained_ones_are_used(plane, pods):
    async with Cable(plane.port) as cable:
        server = f"https://127.0.0.1:{cable.port}"
        async with following(plane, pods, server=server) as (seen, asked):
            await unbind(pods)

            async def was_refused():
                cable.cut()
                return any("403" in text for text in asked.failures)

            await until(was_refused, within_s=15.0)
            await pods.delete("b")
            assert len(seen.sets[-1]) == 2
            await bind(pods)
            await seen.reach(A, within_s=10.0)
            assert all(seen.sets)


async def test_an_inference_pool_selects_the_pods(plane, pods):
    await define_pools(pods.api)
    made = await create_pool(pods.api, pods.namespace, pool("pool", unheard_of=1))
    assert "unheard_of" not in made["spec"]
    bad: list[dict[str, Any]] = [{"selector": {}}, {"targetPorts": []}]
    for wrong in [*bad, {"targetPorts": [{"number": 0}]}]:
        with pytest.raises(client.ApiException) as exc:
            await create_pool(pods.api, pods.namespace, pool("wrong", **wrong))
        assert exc.value.status == 422

    def select(api):
        return kube_api.selector_of_pool(api, pods.namespace, "pool")

    async with following(plane, pods, select=select, relist_s=1.0) as (seen, _):
        await pods.label("b", app="other")
        await seen.reach(A, within_s=1.0)


async def test_the_role_lets_the_router_list_and_watch_and_no_more(plane, pods):
    async with following(plane, pods), await plane.api_client(ROUTER) as api:
        core = client.CoreV1Api(api)
        for refused in (
            core.delete_namespaced_pod("a", pods.namespace),
            core.list_namespaced_secret(pods.namespace),
            core.list_namespaced_pod("default"),
        ):
            with pytest.raises(client.ApiException) as exc:
                await refused
            assert exc.value.status == 403
