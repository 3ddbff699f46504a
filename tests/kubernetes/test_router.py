"""A real router that finds real engines through a real API server, whose watch falls silent."""

import asyncio

import aiohttp

from tests.kubernetes.conftest import ROUTER
from tests.kubernetes.test_discovery import grant
from tests.support import kube
from tests.support.control_plane import Cable
from tests.support.processes import MODEL_DIR, start, start_engine, until


def pod_of(name, engine):
    def port(key):
        return str(engine.ready[key]).rpartition(":")[2]

    notes = {"warmgate/port": port("url"), "warmgate/events-port": port("events_url")}
    notes["warmgate/replay-port"] = port("replay_url")
    return kube.pod(name, "127.0.0.1", annotations=notes)


async def test_a_pod_deleted_while_the_watch_is_silent_is_out_in_3_s_by_its_own_signals(
    plane, pods
):
    await grant(pods)
    engines = [await start_engine(), await start_engine()]
    for number, engine in enumerate(engines):
        await pods.put(pod_of(f"pod-{number}", engine))
    async with Cable(plane.port) as cable, aiohttp.ClientSession() as session:
        server = f"https://127.0.0.1:{cable.port}"
        flags = {
            "source": "kubernetes", "namespace": pods.namespace, "selector": "app=vllm",
            "relist_s": 600, "kubeconfig": plane.kubeconfig(ROUTER, server),
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
            cable.is_dead = True
            began = asyncio.get_running_loop().time()
            await asyncio.gather(engines[1].kill(), pods.delete("pod-1"))
            await until(only_the_first, within_s=3.0)
            print(f"\nout of the choice after {asyncio.get_running_loop().time() - began:.2f} s")
            body = {"model": engines[0].ready["model"], "prompt": "Hello", "max_tokens": 1}
            posts = [session.post(router.url + "/v1/completions", json=body) for _ in range(8)]
            assert {reply.status for reply in await asyncio.gather(*posts)} == {200}
        finally:
            for program in (router, *engines):
                await program.kill()
