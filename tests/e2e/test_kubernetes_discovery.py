"""A real router that finds real engines through an API server."""

import asyncio
import sys
from contextlib import asynccontextmanager

from tests.support import kube
from tests.support.pods_and_router import pod_of, pods_and_router
from tests.support.processes import ROOT, until


@asynccontextmanager
async def followed(directory):
    """(the API server, the router with two pods)."""
    fake = kube.FakeApi()

    async def put(pod):
        await fake.put("pods", pod)

    async with kube.serving(fake) as api_url:
        (directory / "kubeconfig").write_text(kube.kubeconfig(api_url))
        settings = {"namespace": "llm", "kubeconfig": directory / "kubeconfig"}
        async with pods_and_router(put, settings) as running:
            yield fake, running


async def test_pods_are_followed_and_one_killed_while_the_watch_is_silent_is_out_in_3_s(tmp_path):
    async with followed(tmp_path) as (fake, running):
        fake.is_silent = True
        await running.engines[1].kill()
        await fake.delete("pods", "pod-1")
        await running.reach("pod-0", within_s=3.0)
        replies = await asyncio.gather(*(running.ask() for _ in range(8)))
        assert {status for status, _ in replies} == {200}


async def test_a_changed_label_counts_within_a_second_and_costs_no_cache(tmp_path):
    async with followed(tmp_path) as (fake, running):
        assert {status for status, _ in [await running.ask() for _ in range(4)]} == {200}
        before = (await running.rows())["pod-0"]
        role = {"warmgate_role": "prefill"}
        await fake.put("pods", pod_of("pod-1", running.engines[1], **role))
        changed = {"warmgate_adapter": "style", "warmgate_model": "small"}
        await fake.put("pods", pod_of("pod-0", running.engines[0], **changed))

        async def are_known():
            rows = await running.rows()
            return rows["pod-1"]["role"] == "prefill" and "style" in rows["pod-0"]["models"]

        await until(are_known, within_s=1.0)
        replies = [await running.ask() for _ in range(4)]
        assert replies == [(200, "pod-0")] * 4
        after = (await running.rows())["pod-0"]
        # what the engine says of its models goes before what a label says
        assert after["models"] == sorted([*before["models"], "style"])
        assert (after["epoch"], after["trust"]) == (before["epoch"], before["trust"])
        assert after["index_blocks"] >= before["index_blocks"]


async def test_kubernetes_without_rights_is_a_configuration_error():
    flags = ("--set=discovery.source=kubernetes", "--set=discovery.selector=app=vllm")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router.cli", "serve", "--port", "0", *flags,
        cwd=ROOT, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        _, told = await process.communicate()
    assert process.returncode == 2
    assert b"discovery: Service host/port is not set" in told
