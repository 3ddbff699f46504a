"""A real Kubernetes control plane without nodes: etcd, kube-apiserver, kube-controller-manager.

`KUBE_BIN` in the environment names the folder of the last two (`make build/kube`); etcd is on PATH.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

from kubernetes_asyncio import client, config

from tests.support.processes import until
from tests.support.prometheus import free_port

CONTROLLERS: Final = "deployment,replicaset,statefulset,endpoint,garbagecollector,namespace,job"
FEATURES: Final = "--feature-gates=EndpointSliceTerminatingCondition=true"
"""As every server since 1.22 has it."""
MERGE: Final = "application/merge-patch+json"
START_S: Final = 60.0
ADMIN: Final = "admin"


def binaries() -> Path | None:
    """The folder with the real binaries, or None: then tests that need them are skipped."""
    folder = os.environ.get("KUBE_BIN")
    return Path(folder) if folder and shutil.which("etcd") else None


@dataclass
class ControlPlane:
    """Serves at `address`. `users`: who may come with a token, beside `admin`, who may all."""

    folder: Path
    address: str = "127.0.0.1"
    users: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    _etcd_port: int = field(default_factory=free_port)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def certificate(self) -> Path:
        """What a client may trust."""
        return self.folder / "apiserver.crt"

    def start_store(self) -> None:
        etcd, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, free_port()))
        self._run(
            "etcd", "etcd", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync",
            f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )  # fmt: skip

    def start_api(self) -> None:
        """The API server, which keeps all it knows in etcd: start it again as often as you like."""
        key, tokens = self.folder / "sa.key", self.folder / "tokens.csv"
        if not key.exists():
            subprocess.run(
                ["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True
            )
        rows = [f'{ADMIN},{ADMIN},0,"system:masters"']
        rows += [f"{name},{name},{number}" for number, name in enumerate(self.users, 1)]
        tokens.write_text("\n".join(rows))
        self._run(
            "api", self._binary("kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self.address}", f"--advertise-address={self.address}",
            f"--secure-port={self.port}", f"--cert-dir={self.folder}",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16", f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none", "--allow-privileged", FEATURES,
        )  # fmt: skip

    def start_controllers(self, names: str = CONTROLLERS) -> None:
        key = self.folder / "sa.key"
        self._run(
            "controllers", self._binary("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig(ADMIN)}", f"--service-account-private-key-file={key}",
            f"--controllers={names}", FEATURES, "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}", "--port=0", f"--cert-dir={self.folder}",
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """SIGKILL to `etcd`, `api` or `controllers`."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for name in reversed(list(self._running)):
            self.kill(name)

    async def ready(self) -> None:
        """Until the API server says so."""
        await until(lambda: asyncio.to_thread(self._is_ready), START_S)

    def kubeconfig(self, user: str, server: str = "") -> Path:
        """A file for that user; `server`: another way to the API, such as a proxy's."""
        path = (
            self.folder / f"kubeconfig-{user.replace(':', '-')}-{'proxied' if server else 'direct'}"
        )
        cluster = {"server": server or self.url, "insecure-skip-tls-verify": True}
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": user}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }))  # fmt: skip
        return path

    async def api_client(self, user: str = ADMIN, server: str = "") -> client.ApiClient:
        settings = client.Configuration()
        await config.load_kube_config(
            str(self.kubeconfig(user, server)), client_configuration=settings, persist_config=False
        )
        return client.ApiClient(settings)

    def _is_ready(self) -> bool:
        request = urllib.request.Request(
            self.url + "/readyz", headers={"Authorization": f"Bearer {ADMIN}"}
        )
        with suppress(URLError, OSError):
            context = ssl._create_unverified_context()
            with urllib.request.urlopen(request, timeout=2, context=context) as reply:
                return bool(reply.status == 200)
        return False

    def _binary(self, name: str) -> str:
        folder = binaries()
        assert folder is not None
        return str(folder / name)

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as out:
            self._running[name] = subprocess.Popen(command, stdout=out, stderr=out)


@contextmanager
def control_plane(folder: Path, *users: str, address: str = "127.0.0.1") -> Iterator[ControlPlane]:
    """Started, perhaps not ready yet; ended whatever happens."""
    folder.mkdir(parents=True, exist_ok=True)
    plane = ControlPlane(folder, address, users)
    try:
        plane.start_store()
        plane.start_api()
        yield plane
    finally:
        plane.kill_all()


@dataclass
class Pods:
    """Pods of a namespace as a kubelet would report them: their status is ours to say."""

    api: client.ApiClient
    namespace: str

    @property
    def _core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    async def open(self) -> None:
        await self._core.create_namespace({"metadata": {"name": self.namespace}})

    async def put(self, pod: dict[str, Any]) -> None:
        """Create it on a node, with the status that it carries."""
        spec = {**pod["spec"], "nodeName": "n1", "terminationGracePeriodSeconds": 30}
        await self._core.create_namespaced_pod(self.namespace, {**pod, "spec": spec})
        await self.status(pod["metadata"]["name"], pod["status"])

    async def status(self, name: str, status: dict[str, Any]) -> None:
        await self._core.patch_namespaced_pod_status(
            name, self.namespace, {"status": status}, _content_type=MERGE
        )

    async def label(self, name: str, **labels: str) -> None:
        body = {"metadata": {"labels": labels}}
        await self._core.patch_namespaced_pod(name, self.namespace, body, _content_type=MERGE)

    async def end(self, name: str) -> None:
        """Asked to end; it stays until its kubelet has ended it."""
        await self._core.delete_namespaced_pod(name, self.namespace)

    async def delete(self, name: str) -> None:
        """Gone, as after its kubelet has ended it."""
        await self._core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)


@dataclass
class Cable:
    """Between a client and a server, on the level of bytes. `cut`: connections end. `is_dead`:
    they stay, and nothing passes any more, as when a router on the way has lost its state."""

    target_port: int
    is_dead: bool = False
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        opened = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers.add(far_writer)
            opened.append(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, far_writer))
                both.create_task(self._pass(far_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in opened:
                one.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if not self.is_dead:
                sink.write(data)
                await sink.drain()
        raise ConnectionResetError
