"""What the chart renders, run for real but for the cluster: settings, flags, labels, helm test."""

import asyncio
import sys

import aiohttp
import pytest
import yaml

from tests.support import kube
from tests.support.helm import ROOT, helm_binary, render
from tests.support.processes import start, until
from tests.support.prometheus import free_port

pytestmark = pytest.mark.skipif(helm_binary() is None, reason="needs helm (HELM or PATH)")


async def test_a_router_with_rendered_settings_finds_rendered_engines_and_passes_helm_test(
    tmp_path,
):
    ports = {"port": free_port(), "eventsPort": free_port(), "replayPort": free_port()}
    values = ["engines.embedded.enabled=true", "settleSeconds=0", "drainSeconds=5"]
    values += [f"discovery.{name}={port}" for name, port in ports.items()]
    objects = render(*(part for value in values for part in ("--set", value)))
    template = objects.one("Deployment", "demo-warmgate-embedded")["spec"]["template"]
    meta = template["metadata"]
    arguments = [a for a in template["spec"]["containers"][0]["args"] if "0.0.0.0" not in a]
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(objects.config()))
    fake = kube.FakeApi()
    async with kube.serving(fake) as api_url, aiohttp.ClientSession() as session:
        (tmp_path / "kubeconfig").write_text(kube.kubeconfig(api_url))
        engine = await start("workers.cli", *arguments)
        here = {"listen.host": "127.0.0.1", "listen.port": 0, "listen.admin_port": 0}
        here["discovery.kubeconfig"] = tmp_path / "kubeconfig"
        sets = [f"--set={name}={value}" for name, value in here.items()]
        router = await start("router.cli", "serve", "--config", f"{tmp_path}/router.yaml", *sets)
        labels, notes = meta["labels"], meta["annotations"]
        pod = kube.pod("embedded-0", "127.0.0.1", labels=labels, annotations=notes)
        await fake.put("pods", pod)

        async def is_known_for_sure():
            async with session.get(router.ready["admin_url"] + "/debug/replicas") as response:
                rows = (await response.json())["replicas"]
            return [(row["id"], row["trust"]) for row in rows] == [("embedded-0", "exact")]

        try:
            await until(is_known_for_sure)
            script = objects.one("Pod")["spec"]["containers"][0]["args"][0]
            told = await output_of(script.replace("http://demo-warmgate:80", router.url))
            assert told.split()[0] == "embedded-0"
            assert await router.stop() == 0
        finally:
            await router.kill()
            await engine.kill()


async def output_of(script):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        told, _ = await process.communicate()
    assert process.returncode == 0
    return told.decode()
