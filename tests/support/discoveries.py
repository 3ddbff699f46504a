"""Every discovery with a world that it looks at, for the contract that all of them keep."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from kubernetes_asyncio import client

from router.config import parse_replicas
from router.replicas import Replica, kube_api
from router.replicas.discovery import Discovery, StaticDiscovery
from router.replicas.dns_discovery import DnsDiscovery
from router.replicas.file_discovery import FileDiscovery
from router.replicas.kube_objects import replicas_of_pod, replicas_of_slice
from router.replicas.kubernetes import KubernetesDiscovery
from router.replicas.ports import Ports
from tests.support import kube
from tests.support.processes import until

PORTS = Ports()


class World(Protocol):
    """What is out there. `names` of what discovery finds are ids or, for DNS, addresses."""

    @property
    def discovery(self) -> Discovery: ...

    async def set(self, addresses: Mapping[str, str]) -> None: ...
    async def break_(self) -> None: ...
    async def mend(self) -> None: ...


@dataclass
class Followed:
    """A discovery that is being watched, and the sets that it has yielded."""

    sets: list[frozenset[Replica]] = field(default_factory=list)

    async def reach(self, *urls: str, within_s: float = 5.0) -> None:
        async def holds() -> bool:
            return bool(self.sets) and {r.url for r in self.sets[-1]} == set(urls)

        await until(holds, within_s)


@asynccontextmanager
async def followed(discovery: Discovery) -> AsyncIterator[Followed]:
    seen = Followed()

    async def follow() -> None:
        async for replicas in discovery.watch():
            seen.sets.append(replicas)

    task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class StaticWorld:
    def __init__(self) -> None:
        self.discovery = StaticDiscovery([])

    async def set(self, addresses: Mapping[str, str]) -> None:
        self.discovery.replace([r for n, a in addresses.items() for r in PORTS.replicas(n, a)])

    async def break_(self) -> None: ...
    async def mend(self) -> None: ...


class FileWorld:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.discovery = FileDiscovery(path, parse_replicas, interval_s=0.02)

    async def set(self, addresses: Mapping[str, str]) -> None:
        rows = [{"id": name, "url": f"http://{a}:8000"} for name, a in addresses.items()]
        self._good = yaml.safe_dump({"replicas": rows})
        await self.mend()

    async def break_(self) -> None:
        self._path.write_text("replicas: [{id: only-half")

    async def mend(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(self._good)
        fresh.replace(self._path)


class DnsWorld:
    def __init__(self) -> None:
        self._addresses: frozenset[str] = frozenset()
        self._is_broken = False
        self.discovery = DnsDiscovery("engines", PORTS, interval_s=0.02, resolve=self._resolve)

    async def _resolve(self, name: str) -> frozenset[str]:
        if self._is_broken:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._addresses

    async def set(self, addresses: Mapping[str, str]) -> None:
        self._addresses = frozenset(addresses.values())

    async def break_(self) -> None:
        self._is_broken = True

    async def mend(self) -> None:
        self._is_broken = False


class KubeWorld:
    """Pods, or one EndpointSlice."""

    def __init__(self, api: client.ApiClient, fake: kube.FakeApi, *, by_slices: bool) -> None:
        self.fake = fake
        self._by_slices = by_slices
        if by_slices:
            source = kube_api.slices(api, "llm", "engines")
            self.discovery = KubernetesDiscovery(source, lambda t: replicas_of_slice(t, PORTS))
        else:
            source = kube_api.pods(api, "llm", kube_api.constant("app=vllm"))
            self.discovery = KubernetesDiscovery(source, lambda t: replicas_of_pod(t, PORTS))

    async def set(self, addresses: Mapping[str, str]) -> None:
        if self._by_slices:
            slice_ = kube.endpoint_slice("engines-1", "engines", *addresses.items())
            await self.fake.put("endpointslices", slice_)
            return
        for _, name in [key for key in self.fake.objects if key[1] not in addresses]:
            await self.fake.delete("pods", name)
        for name, address in addresses.items():
            await self.fake.put("pods", kube.pod(name, address))

    async def break_(self) -> None:
        self.fake.is_forbidden = True
        self.fake.compact()

    async def mend(self) -> None:
        self.fake.is_forbidden = False


@asynccontextmanager
async def kube_world(*, by_slices: bool = False) -> AsyncIterator[KubeWorld]:
    fake = kube.FakeApi()
    async with kube.serving(fake) as url, client.ApiClient(settings_of(url)) as api:
        yield KubeWorld(api, fake, by_slices=by_slices)


def settings_of(url: str) -> Any:
    settings = client.Configuration()
    settings.host = url
    return settings


WORLDS = ("static", "file", "dns", "pods", "slices")


@asynccontextmanager
async def world_of(kind: str, directory: Path) -> AsyncIterator[World]:
    if kind in ("pods", "slices"):
        async with kube_world(by_slices=kind == "slices") as world:
            yield world
        return
    if kind == "file":
        yield FileWorld(directory / "replicas.yaml")
    else:
        yield StaticWorld() if kind == "static" else DnsWorld()
