"""A real router that finds real engines through a real API server, whose watch falls silent."""

import asyncio

from tests.kubernetes.conftest import ROUTER
from tests.kubernetes.test_discovery import grant
from tests.support.control_plane import Cable
from tests.support.pods_and_router import pods_and_router
from tests.support.processes import until


async def test_a_pod_deleted_while_the_watch_is_silent_is_out_in_3_s_by_its_own_signals(
    plane, pods
):
    await grant(pods)
    async with Cable(plane.port) as cable:
        kubeconfig = plane.kubeconfig(ROUTER, f"https://127.0.0.1:{cable.port}")
        settings = {"namespace": pods.namespace, "kubeconfig": kubeconfig}
        async with pods_and_router(pods.put, settings) as running:
            cable.is_dead = True
            await asyncio.gather(running.engines[1].kill(), pods.delete("pod-1"))
            took_s = await running.reach("pod-0", within_s=3.0)
            print(f"\nout of the choice after {took_s:.2f} s")
            replies = await asyncio.gather(*(running.ask() for _ in range(8)))
            assert {status for status, _ in replies} == {200}


async def test_role_and_adapter_labels_count_within_a_second(plane, pods):
    await grant(pods)
    settings = {"namespace": pods.namespace, "kubeconfig": plane.kubeconfig(ROUTER)}
    async with pods_and_router(pods.put, settings) as running:
        await pods.label("pod-1", **{"warmgate/role": "prefill", "warmgate/adapter": "style"})

        async def are_known():
            row = (await running.rows())["pod-1"]
            return row["role"] == "prefill" and "style" in row["models"]

        await until(are_known, within_s=1.0)
        assert [await running.ask() for _ in range(4)] == [(200, "pod-0")] * 4
        await pods.label("pod-1", **{"warmgate/role": "decode"})

        async def is_back():
            return (await running.rows())["pod-1"]["role"] == "decode"

        await until(is_back, within_s=1.0)
