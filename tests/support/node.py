"""A node in small: what kubelet, kube-proxy and a cluster's DNS do, as far as our chart needs it.

Pods of a real API server become processes (`sandbox`), with their ConfigMaps, Secrets and tokens;
probes decide on readiness; a pod that is asked to end gets SIGTERM and its grace period. Services
are proxied at their cluster addresses, and their names are in every pod's /etc/hosts. Not here:
preStop hooks, liveness, limits of CPU and memory, NetworkPolicy.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import client

from tests.support.control_plane import MERGE, ControlPlane
from tests.support.sandbox import HOST, Image, Sandbox
from tests.support.service_proxy import ServiceProxy

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"

Thing = dict[str, Any]


@dataclass
class Life:
    """One pod on this node."""

    task: asyncio.Task[None] | None = None
    sandbox: Sandbox | None = None
    told: Thing = field(default_factory=dict)
    ending: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Node:
    """`images`: by repository, without the tag."""

    plane: ControlPlane
    folder: Path
    images: Mapping[str, Image]
    api: client.ApiClient
    session: aiohttp.ClientSession
    proxy: ServiceProxy
    lives: dict[str, Life] = field(default_factory=dict)
    _count: int = 0

    async def run(self) -> None:
        core = client.CoreV1Api(self.api)
        while True:
            for pod in await listed(core.list_pod_for_all_namespaces):
                self._look_after(pod)
            services = await listed(core.list_service_for_all_namespaces)
            endpoints = await listed(core.list_endpoints_for_all_namespaces)
            await self.proxy.update(services, endpoints)
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        tasks = [life.task for life in self.lives.values() if life.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for life in self.lives.values():
            if life.sandbox is not None:
                life.sandbox.close()
        await self.proxy.close()

    def address_of(self, namespace: str, pod: str) -> str:
        """Pods' names are their folders'."""
        return self._sandbox_of(pod).address

    def log_of(self, pod: str) -> str:
        """What the pod has printed."""
        return self._sandbox_of(pod).log.read_text()

    def _sandbox_of(self, pod: str) -> Sandbox:
        found = (life.sandbox for life in self.lives.values() if life.sandbox is not None)
        return next(sandbox for sandbox in found if sandbox.folder.name == pod)

    def _look_after(self, pod: Thing) -> None:
        life = self.lives.get(pod["metadata"]["uid"])
        if life is None:
            life = self.lives[pod["metadata"]["uid"]] = Life()
            life.task = owned(self._live(pod, life))
        if "deletionTimestamp" in pod["metadata"]:
            life.ending.set()

    async def _live(self, pod: Thing, life: Life) -> None:
        core, meta = client.CoreV1Api(self.api), pod["metadata"]
        name, namespace = meta["name"], meta["namespace"]
        target = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": name}}
        await core.create_namespaced_pod_binding(
            name, namespace, target, _preload_content=False
        )  # fmt: skip
        life.sandbox = sandbox = await self._sandbox(pod)
        sandbox.open()
        sandbox.start()
        end = asyncio.create_task(life.ending.wait())
        try:
            while not end.done() and not await self._finished(pod, sandbox):
                await self._report(pod, sandbox, is_ready=await self._is_ready(pod, sandbox))
                await asyncio.wait([end], timeout=LOOK_S)
            await end
        finally:
            end.cancel()
        sandbox.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(sandbox.wait, pod["spec"]["terminationGracePeriodSeconds"])
        await asyncio.to_thread(sandbox.close)
        await core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
        life.sandbox = None

    async def _sandbox(self, pod: Thing) -> Sandbox:
        self._count = number = self._count + 1
        (container,) = pod["spec"]["containers"]
        folder = self.folder / pod["metadata"]["name"]
        mounts = {"/etc/hosts": self.proxy.hosts}
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            path = mount["mountPath"]
            mounts[path] = await self._volume(pod, volumes[mount["name"]], folder)
        if pod["spec"].get("automountServiceAccountToken"):
            mounts[ACCOUNT] = await self._account(pod, folder)
        repository = container["image"].rpartition(":")[0]
        env = {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(self.plane.port)}
        for row in container.get("env", ()):
            env[row["name"]] = row.get("value") or await self._secret(pod, row["valueFrom"])
        return Sandbox(
            number=number, folder=folder, image=self.images[repository], container=container,
            security=pod["spec"]["securityContext"], mounts=mounts, env=env,
        )  # fmt: skip

    async def _volume(self, pod: Thing, volume: Thing, folder: Path) -> Path:
        place = folder / "volumes" / str(volume["name"])
        place.mkdir(parents=True)
        core, namespace = client.CoreV1Api(self.api), pod["metadata"]["namespace"]
        if told := volume.get("configMap"):
            found = await core.read_namespaced_config_map(told["name"], namespace)
            for name, text in found.data.items():
                (place / name).write_text(text)
        elif told := volume.get("secret"):
            secret = await core.read_namespaced_secret(told["secretName"], namespace)
            for name, text in secret.data.items():
                (place / name).write_bytes(base64.b64decode(text))
        else:
            place.chmod(0o777)
        return place

    async def _secret(self, pod: Thing, source: Thing) -> str:
        told, namespace = source["secretKeyRef"], pod["metadata"]["namespace"]
        core = client.CoreV1Api(self.api)
        found = await core.read_namespaced_secret(told["name"], namespace)
        return base64.b64decode(found.data[told["key"]]).decode()

    async def _account(self, pod: Thing, folder: Path) -> Path:
        """A token of the pod's ServiceAccount, from the API, as every pod gets it."""
        place = folder / "account"
        place.mkdir(parents=True)
        namespace, account = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        body = {"spec": {"audiences": ["https://kubernetes.default.svc"]}}
        core = client.CoreV1Api(self.api)
        told = await core.create_namespaced_service_account_token(account, namespace, body)
        (place / "token").write_text(told.status.token)
        (place / "namespace").write_text(namespace)
        (place / "ca.crt").write_bytes(self.plane.certificate.read_bytes())
        return place

    async def _is_ready(self, pod: Thing, sandbox: Sandbox) -> bool:
        """By its readiness probe; without one it is ready as soon as it runs."""
        probe = sandbox.container.get("readinessProbe", {})
        asked = probe.get("httpGet") or probe.get("tcpSocket")
        if asked is None:
            return True
        ports = {port["name"]: port["containerPort"] for port in sandbox.container["ports"]}
        where = f"http://{sandbox.address}:{ports[asked['port']]}"
        try:
            async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
                if "httpGet" not in probe:
                    _, writer = await asyncio.open_connection(sandbox.address, ports[asked["port"]])
                    writer.close()
                    return True
                async with self.session.get(where + asked["path"]) as reply:
                    return reply.status < 400
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False

    async def _finished(self, pod: Thing, sandbox: Sandbox) -> bool:
        """Whether its container has ended for good; one that should not have is started anew."""
        code = sandbox.exit_code
        if code is None:
            return False
        if pod["spec"]["restartPolicy"] != "Never":
            await asyncio.sleep(1.0)
            sandbox.start()
            return False
        phase = "Failed" if code else "Succeeded"
        state = {"terminated": {"exitCode": code}}
        await self._patch(pod, {**status_of(pod, sandbox, state, is_ready=False), "phase": phase})
        return True

    async def _report(self, pod: Thing, sandbox: Sandbox, *, is_ready: bool) -> None:
        await self._patch(pod, status_of(pod, sandbox, {"running": {}}, is_ready=is_ready))

    async def _patch(self, pod: Thing, status: Thing) -> None:
        if self.lives[pod["metadata"]["uid"]].told == status:
            return
        self.lives[pod["metadata"]["uid"]].told = status
        await client.CoreV1Api(self.api).patch_namespaced_pod_status(
            pod["metadata"]["name"], pod["metadata"]["namespace"], {"status": status},
            _content_type=MERGE,
        )  # fmt: skip


async def listed(ask: Callable[..., Awaitable[Any]]) -> list[Thing]:
    async with await ask(_preload_content=False) as reply:
        return list((await reply.json()).get("items") or ())


def owned(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task whose failure is shown where tests show what was logged."""
    task = asyncio.create_task(work)
    task.add_done_callback(complain)
    return task


def complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        log.error("the node failed", exc_info=exc)


def status_of(pod: Thing, sandbox: Sandbox, state: Thing, *, is_ready: bool) -> Thing:
    container = sandbox.container
    return {
        "phase": "Running", "podIP": sandbox.address, "hostIP": HOST,
        "conditions": list(conditions(is_ready=is_ready)),
        "containerStatuses": [{
            "name": container["name"], "ready": is_ready, "restartCount": 0,
            "image": container["image"], "imageID": "x", "state": state,
        }],
    }  # fmt: skip


def conditions(*, is_ready: bool) -> Iterator[Thing]:
    for kind in ("Initialized", "PodScheduled"):
        yield {"type": kind, "status": "True"}
    for kind in ("Ready", "ContainersReady"):
        yield {"type": kind, "status": "True" if is_ready else "False"}


@asynccontextmanager
async def node(
    plane: ControlPlane, folder: Path, images: Mapping[str, Image]
) -> AsyncIterator[Node]:
    """A running node; on leaving all its pods are killed."""
    async with await plane.api_client() as api, aiohttp.ClientSession() as session:
        proxy = ServiceProxy(folder / "hosts")
        built = Node(plane, folder, images, api, session, proxy)
        running = owned(built.run())
        try:
            yield built
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await built.close()
