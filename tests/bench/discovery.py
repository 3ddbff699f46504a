"""What 500 pods that keep changing cost the router: CPU of watching, decoding and reconciling."""

import asyncio
import json
import threading
import time

from kubernetes_asyncio import client

from router.replicas import Pool, kube_api
from router.replicas.kube_objects import replicas_of_pod
from router.replicas.kubernetes import KubernetesDiscovery
from router.replicas.ports import Ports
from tests.support import kube
from tests.support.discoveries import settings_of

PODS, CHANGES_PER_S, SECONDS = 500, 50, 10
FILLER = {"managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:{n}": {} for n in range(400)}}]}


def fat_pod(number: int, *, ready: bool = True) -> dict[str, object]:
    """A pod of the usual 8 kB."""
    pod = kube.pod(f"vllm-{number}", f"10.1.{number // 250}.{number % 250}", ready=ready)
    pod["metadata"] |= FILLER
    return pod


async def churn(ready: threading.Event, told: list[str]) -> None:
    """The API server's side, in a thread of its own: each change flips one pod's readiness."""
    fake = kube.FakeApi()
    for number in range(PODS):
        await fake.put("pods", fat_pod(number))
    async with kube.serving(fake) as url:
        told.append(url)
        ready.set()
        for change in range(CHANGES_PER_S * SECONDS):
            await fake.put("pods", fat_pod(change * 7 % PODS, ready=change % 2 == 0))
            await asyncio.sleep(1 / CHANGES_PER_S)


async def follow(url: str) -> tuple[int, float]:
    """(sets taken over, CPU seconds of this thread)."""
    pool, sets = Pool(time.monotonic), 0
    async with client.ApiClient(settings_of(url)) as api:
        source = kube_api.pods(api, "llm", kube_api.constant("app=vllm"))
        discovery = KubernetesDiscovery(source, lambda t: replicas_of_pod(t, Ports()))
        began = time.thread_time()
        try:
            async with asyncio.timeout(SECONDS):
                async for replicas in discovery.watch():
                    pool.reconcile(replicas)
                    sets += 1
        except TimeoutError:
            pass
    return sets, time.thread_time() - began


def measure() -> dict[str, float]:
    """`core_percent` of one core over `SECONDS`, list included."""
    ready, told = threading.Event(), list[str]()
    server = threading.Thread(target=lambda: asyncio.run(churn(ready, told)))
    server.start()
    ready.wait(60)
    sets, cpu_s = asyncio.run(follow(told[0]))
    server.join()
    return {
        "pods": PODS,
        "changes_per_s": CHANGES_PER_S,
        "pod_bytes": len(json.dumps(fat_pod(1))),
        "sets": sets,
        "core_percent": round(100 * cpu_s / SECONDS, 2),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
