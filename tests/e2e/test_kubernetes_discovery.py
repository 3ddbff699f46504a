"""A real router that finds real engines through an API server."""

import asyncio
import sys

import aiohttp

from tests.support import kube
from tests.support.processes import MODEL_DIR, ROOT, start, start_engine, until


def pod_of(name, engine):
    def port(key):
        return str(engine.ready[key]).rpartition(":")[2]

    notes = {"warmgate/port": port("url"), "warmgate/events-port": port("events_url")}
    notes["warmgate/replay-port"] = port("replay_url")
    return kube.pod(name, "127.0.0.1", annotations=notes)


async def test_pods_are_followed_and_one_killed_while_the_watch_is_silent_is_out_in_3_s(tmp_path):
    fake = kube.FakeApi()
    async with kube.serving(fake) as api_url, aiohttp.ClientSession() as session:
        (tmp_path / "kubeconfig").write_text(kube.kubeconfig(api_url))
        engines = [await start_engine(), await start_engine()]
        for number, engine in enumerate(engines):
            await fake.put("pods", pod_of(f"pod-{number}", engine))
        flags = {
            "source": "kubernetes", "namespace": "llm", "selector": "app=vllm", "relist_s": 600,
            "kubeconfig": tmp_path / "kubeconfig",
        }  # fmt: skip
        sets = [f"--set=discovery.{name}={value}" for name, value in flags.items()]
        sets += ["--set=health.interval_s=1", "--tokenizer", str(MODEL_DIR)]
        router = await start("router.cli", "serve", "--port", "0", *sets)

        async def healthy():
            async with session.get(router.url + "/debug/replicas") as response:
                rows = (await response.json())["replicas"]
            return {row["id"] for row in rows if row["is_healthy"]}

        async def both():
            return await healthy() == {"pod-0", "pod-1"}

        async def only_the_first():
            return await healthy() == {"pod-0"}

        try:
            await until(both)
            fake.is_silent = True
            await engines[1].kill()
            await fake.delete("pods", "pod-1")
            await until(only_the_first, within_s=3.0)
            body = {"model": engines[0].ready["model"], "prompt": "Hello", "max_tokens": 1}
            posts = [session.post(router.url + "/v1/completions", json=body) for _ in range(8)]
            replies = await asyncio.gather(*posts)
            assert {reply.status for reply in replies} == {200}
        finally:
            for program in (router, *engines):
                await program.kill()


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
