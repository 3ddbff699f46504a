"""From an empty cluster to a measured P95 TTFT: real API server, real helm, the real image.

The commands are those of k8s/README.md, `port-forward` included. While the routers are upgraded the
load goes to the Service's own address: a forwarded port ends with its pod.
"""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from kubernetes_asyncio import client

from tests.support.control_plane import MERGE, binaries, control_plane
from tests.support.helm import CHART, ROOT, helm_binary
from tests.support.node import node
from tests.support.port_forward import kubelet
from tests.support.processes import until
from tests.support.sandbox import HOST, Image, make_bridge

IMAGE = os.environ.get("NODE_IMAGE", "")
ALONE = {name for _, name in socket.if_nameindex()} == {"lo"}
TRIAL = str(ROOT / "k8s" / "examples" / "trial-without-gpu.yaml")
pytestmark = [
    pytest.mark.skipif(
        not (IMAGE and ALONE and binaries() and helm_binary() and os.geteuid() == 0),
        reason="needs root, a network of its own, kube-apiserver, helm, an image",
    ),
    pytest.mark.timeout(300),
]


class Cluster:
    """`helm` and `kubectl` as an administrator's shell runs them."""

    def __init__(self, plane, node, chart):
        self.plane, self.node, self.chart = plane, node, chart

    async def run(self, *command, within_s=120):
        env = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig("admin"))}
        process = await asyncio.create_subprocess_exec(
            *command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(within_s):
            told, complaint = await process.communicate()
        assert process.returncode == 0, (command, told.decode(), complaint.decode())
        return told.decode()

    async def helm(self, *arguments):
        return await self.run(helm_binary(), "-n", "llm", *arguments)

    async def kubectl(self, *arguments):
        return await self.run(
            str(Path(helm_binary() or "").with_name("kubectl")), "-n", "llm", *arguments
        )

    @asynccontextmanager
    async def forwarded(self, service, ports):
        """`kubectl port-forward` beside what the block does."""
        kubectl = str(Path(helm_binary() or "").with_name("kubectl"))
        process = await asyncio.create_subprocess_exec(
            kubectl, "-n", "llm", "port-forward", f"service/{service}", ports,
            env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig("admin"))},
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                assert b"Forwarding from" in await process.stdout.readline()
            yield
        finally:
            process.terminate()
            await process.wait()

    async def address(self, service):
        found = await client.CoreV1Api(self.node.api).read_namespaced_service(service, "llm")
        return found.spec.cluster_ip

    async def pods(self, component):
        label = f"app.kubernetes.io/component={component}"
        found = await client.CoreV1Api(self.node.api).list_namespaced_pod(
            "llm", label_selector=label
        )
        return {pod.metadata.name for pod in found.items if not pod.metadata.deletion_timestamp}


@asynccontextmanager
async def empty_cluster(folder):
    make_bridge()
    chart = folder / "warmgate"
    shutil.copytree(CHART, chart)
    # the newest API server that can be built here is older than those that the chart is for
    told = (chart / "Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(re.sub(r"kubeVersion: .*", 'kubeVersion: ">=1.20.0-0"', told))
    image = Image.of(Path(IMAGE))
    images = {"registry.local/warmgate": image, "redis": Image(Path("/"), {"PATH": "/usr/bin"})}
    with control_plane(folder / "kube", address=HOST) as plane:
        await plane.ready()
        plane.start_controllers()
        async with (
            node(plane, folder / "pods", images) as running,
            kubelet(HOST, folder / "kubelet", running.address_of) as port,
        ):
            await add_node(client.CoreV1Api(running.api), port)
            yield Cluster(plane, running, str(chart))


async def add_node(core, kubelet_port):
    await core.create_node({"metadata": {"name": "n1"}})
    status = {
        "addresses": [{"type": "InternalIP", "address": HOST}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
    }
    await core.patch_node_status("n1", {"status": status}, _content_type=MERGE)


async def measure(url, out, requests=60, rate=2):
    """The load generator's summary, as a user runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.cli", "run", "--url", url, "--model", "warmgate-tiny",
        "--workload", "multi-turn", "--num-requests", str(requests), "--request-rate", str(rate),
        "--json", str(out), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    return json.loads(out.read_text())["summary"]


def told_of(summary):
    ttft = summary["latency_ms"]["ttft_failed_inf"]
    return (
        f"P95 TTFT {ttft['p95']:.0f} ms, hit rate {summary['hit_rate']:.1%}, "
        f"{summary['ok']} of {summary['planned']} answered"
    )


async def replicas(url):
    async with aiohttp.ClientSession() as session, session.get(url + "/debug/replicas") as reply:
        return {row["id"]: row for row in (await reply.json())["replicas"]}


async def test_installed_asked_measured_upgraded_under_load_and_taken_away(tmp_path):
    async with empty_cluster(tmp_path) as cluster:
        began = time.monotonic()
        flags = ("-f", TRIAL, "--set", "image.repository=registry.local/warmgate")
        await cluster.helm("install", "demo", cluster.chart, "--create-namespace", *flags)
        await cluster.kubectl("rollout", "status", "deployment/demo-warmgate", "--timeout=90s")
        assert "Succeeded" in await cluster.helm("test", "demo")
        async with cluster.forwarded("demo-warmgate", "8080:80"):
            summary = await measure("http://127.0.0.1:8080", tmp_path / "first.json")
        took_s = time.monotonic() - began
        print(f"\nfrom an empty cluster in {took_s:.0f} s: {told_of(summary)}")
        assert summary["errors"] == summary["unsent"] == 0
        assert took_s < 600

        url = f"http://{await cluster.address('demo-warmgate')}"
        # upgraded under load to discovery by the API, with the rights that the chart gives
        load = asyncio.create_task(measure(url + ":80", tmp_path / "second.json", 120, 4))
        more = ("--set", "discovery.source=kubernetes", "--set", "drainSeconds=30")
        wait = ("--wait", "--timeout=90s")
        await cluster.helm("upgrade", "demo", cluster.chart, *flags, *more, *wait)
        assert not load.done()
        summary = await load
        print(f"while it was upgraded: {told_of(summary)}")
        assert summary["errors"] == summary["unsent"] == 0
        seen = await replicas(url + ":9090")
        assert set(seen) == await cluster.pods("engine")

        victim = sorted(seen)[0]
        await client.CoreV1Api(cluster.node.api).delete_namespaced_pod(victim, "llm")

        async def is_gone():
            return victim not in await replicas(url + ":9090")

        await until(is_gone, within_s=1.0)

        async def is_replaced():
            rows = await replicas(url + ":9090")
            return len(rows) == 2 and all(row["is_healthy"] for row in rows.values())

        await until(is_replaced, within_s=30.0)
        await cluster.helm("rollback", "demo", "1", "--wait", "--timeout=90s")
        await cluster.helm("uninstall", "demo", "--wait")

        async def nothing_is_left():
            return not await cluster.pods("router") and not await cluster.pods("engine")

        # Helm waits for what it made; pods are taken away by the garbage collector after that
        await until(nothing_is_left, within_s=40.0)
