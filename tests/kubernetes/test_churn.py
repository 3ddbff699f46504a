"""500 pods that keep changing, on a real API server: what following them costs the router."""

import asyncio
import time

from kubernetes_asyncio import client

from router.replicas import Pool, kube_api
from router.replicas.kube_objects import replicas_of_pod
from router.replicas.kubernetes import KubernetesDiscovery
from router.replicas.ports import Ports
from tests.kubernetes.conftest import ROUTER
from tests.support import kube
from tests.support.control_plane import Pods

PODS, CHANGES_PER_S, SECONDS = 500, 50, 10


def pod(number, *, ready=True):
    return kube.pod(f"vllm-{number}", f"10.1.{number // 250}.{number % 250}", ready=ready)


async def in_turns(works, at_once=16):
    slots = asyncio.Semaphore(at_once)

    async def one(work):
        async with slots:
            await work

    await asyncio.gather(*(one(work) for work in works))


def churn(plane, namespace, seconds):
    """Each change flips a pod's readiness; in a process of its own."""

    async def run():
        async with await plane.api_client() as api:
            pods, began = Pods(api, namespace), time.monotonic()
            for change in range(CHANGES_PER_S * seconds):
                status = pod(change * 7 % PODS, ready=change % 2 == 0)["status"]
                await pods.status(f"vllm-{change * 7 % PODS}", status)
                await asyncio.sleep(max(0, began + change / CHANGES_PER_S - time.monotonic()))

    asyncio.run(run())


async def follow(source, seconds):
    """(sets taken over, CPU seconds of this thread)."""
    pool, sets, began = Pool(time.monotonic), 0, time.thread_time()
    discovery = KubernetesDiscovery(source, lambda thing: replicas_of_pod(thing, Ports()))
    try:
        async with asyncio.timeout(seconds):
            async for replicas in discovery.watch():
                pool.reconcile(replicas)
                sets += 1
    except TimeoutError:
        pass
    return sets, len(pool), time.thread_time() - began


async def test_500_pods_that_keep_changing_cost_less_than_5_percent_of_a_core(plane, pods):
    await in_turns([pods.put(pod(number)) for number in range(PODS)])
    rbac = client.RbacAuthorizationV1Api(pods.api)
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    await rbac.create_namespaced_role(
        pods.namespace, {"metadata": {"name": "router"}, "rules": rules}
    )
    group = "rbac.authorization.k8s.io"
    await rbac.create_namespaced_role_binding(pods.namespace, {
        "metadata": {"name": "router"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "router"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": ROUTER}],
    })  # fmt: skip
    changing = asyncio.create_task(asyncio.to_thread(churn, plane, pods.namespace, SECONDS))
    async with await plane.api_client(ROUTER) as api:
        source = kube_api.pods(api, pods.namespace, kube_api.constant("app=vllm"))
        sets, held, cpu_s = await follow(source, SECONDS)
    await changing
    percent = 100 * cpu_s / SECONDS
    print(
        f"\n{PODS} pods, {CHANGES_PER_S} changes a second: {percent:.2f} % of a core, {sets} sets"
    )
    assert sets > SECONDS
    assert held > PODS / 3
    assert percent < 5
