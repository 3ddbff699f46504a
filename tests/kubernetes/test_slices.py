"""EndpointSlices v1 that the server's own controller makes of a Service and its pods."""

import asyncio
from contextlib import asynccontextmanager

import kubernetes_validate
import pytest
from kubernetes_asyncio import client

from router.replicas import kube_api
from router.replicas.kube_objects import replicas_of_slice
from router.replicas.kubernetes import KubernetesDiscovery
from router.replicas.ports import Ports
from tests.kubernetes.conftest import ROUTER
from tests.kubernetes.test_discovery import Seen, bind, unbind
from tests.support import kube
from tests.support.control_plane import Cable
from tests.support.discoveries import followed
from tests.support.processes import until
from tests.support.slices_v1 import slices_v1

A, B, C = (f"http://10.0.0.{n}:8000" for n in (1, 2, 3))
RULE = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}
RIGHTS = [{**RULE, "verbs": ["list", "watch"]}]


@pytest.fixture(scope="module")
def controllers(started):
    """Beside the server for all tests of this file."""
    started.start_controllers("endpointslice")
    yield
    started.kill("controllers")


@pytest.fixture
async def v1(plane, pods, controllers, tmp_path):
    core = client.CoreV1Api(pods.api)
    # the controller asks for the node of every pod
    await core.create_node({"metadata": {"name": "n1"}})
    async with slices_v1(plane, pods.api, tmp_path / "v1") as served:
        yield served
    await core.delete_node("n1")


@asynccontextmanager
async def following(plane, pods, *, server="", relist_s=20.0):
    """Two pods behind the Service `vllm`, followed with the rights that the chart grants."""
    rbac, core = client.RbacAuthorizationV1Api(pods.api), client.CoreV1Api(pods.api)
    await rbac.create_namespaced_role(
        pods.namespace, {"metadata": {"name": "router"}, "rules": RIGHTS}
    )
    await bind(pods)
    ports = [{"name": "http", "port": 80, "targetPort": 8000, "protocol": "TCP"}]
    meta = {"name": "vllm", "labels": {"warmgate/model": "llama"}}
    spec = {"selector": {"app": "vllm"}, "ports": ports, "clusterIP": "None"}
    await core.create_namespaced_service(pods.namespace, {"metadata": meta, "spec": spec})
    await pods.put(kube.pod("a", "10.0.0.1"))
    await pods.put(kube.pod("b", "10.0.0.2"))
    async with await plane.api_client(ROUTER, server) as api:
        asked = Seen(kube_api.slices(api, pods.namespace, "vllm"))
        discovery = KubernetesDiscovery(
            asked, lambda thing: replicas_of_slice(thing, Ports()), relist_s=relist_s
        )
        async with followed(discovery) as seen:
            await seen.reach(A, B, within_s=30.0)
            await asked.watched.wait()
            yield seen, asked


async def test_endpoints_of_a_service_are_followed_within_a_second(plane, pods, v1):
    async with following(plane, pods) as (seen, _):
        assert {replica.model for replica in seen.sets[-1]} == {"llama"}
        await pods.status("b", kube.pod("b", "10.0.0.2", ready=False)["status"])
        await seen.reach(A, within_s=2.0)
        await pods.status("b", kube.pod("b", "10.0.0.2")["status"])
        await seen.reach(A, B, within_s=2.0)
        await pods.end("b")
        await seen.reach(A, within_s=2.0)
        await pods.put(kube.pod("c", "10.0.0.3"))
        await seen.reach(A, C, within_s=2.0)
        await pods.delete("c")
        await seen.reach(A, within_s=2.0)
    terminating = [
        e for s in v1.served for e in s["endpoints"] if e["conditions"].get("terminating")
    ]
    assert terminating, "the controller told of no pod that ends"
    for thing in v1.served:
        for version in ("1.28", "1.33", "1.37"):
            kubernetes_validate.validate(thing, version, strict=True)


async def test_a_silent_watch_hides_an_endpoint_until_the_next_list(plane, pods, v1):
    async with Cable(plane.port) as cable:
        server = f"https://127.0.0.1:{cable.port}"
        async with following(plane, pods, server=server, relist_s=5.0) as (seen, _):
            cable.is_dead = True
            asyncio.get_running_loop().call_later(4.0, setattr, cable, "is_dead", False)
            await pods.delete("b")
            await seen.reach(A, within_s=15.0)


async def test_lost_rights_leave_the_endpoints(plane, pods, v1):
    async with Cable(plane.port) as cable:
        server = f"https://127.0.0.1:{cable.port}"
        async with following(plane, pods, server=server) as (seen, asked):
            before = len(seen.sets)
            await unbind(pods)

            async def was_refused():
                cable.cut()
                return any("403" in text for text in asked.failures)

            await until(was_refused, within_s=15.0)
            await pods.delete("b")
            assert len(seen.sets[-1]) == 2
            await bind(pods)
            await seen.reach(A, within_s=10.0)
            assert all(seen.sets[before:]), "an empty set while the router had no rights"
