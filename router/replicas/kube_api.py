"""Kubernetes' API by its official asynchronous client (the extra `k8s`): rights, TLS, tokens.

Bodies are taken as bytes: the client's models cost a millisecond per pod, `kube_objects` 10 µs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from kubernetes_asyncio import client, config

from router.replicas.kubernetes import ApiUnusable

LIST_TIMEOUT_S: Final = 8.0
POOL_GROUP: Final = "inference.networking.k8s.io"
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Ask = Callable[..., Awaitable[Any]]
Select = Callable[[], Awaitable[str]]


class KubernetesApi:
    """One collection of a namespace: `ask` is the client's method that lists it."""

    def __init__(
        self, ask: Ask, namespace: str, select: Select, *, list_timeout_s: float = LIST_TIMEOUT_S
    ) -> None:
        self._ask = ask
        self._namespace = namespace
        self._select = select
        self._list_timeout_s = list_timeout_s
        self._selector = ""

    async def list(self) -> bytes:
        """See `Api`. Not from the server's cache: a router that starts must not see the past."""
        async with _translated():
            self._selector = await self._select()
            async with await self._get(self._list_timeout_s) as response:
                return await _checked(response)

    async def watch(self, version: str, *, for_s: float) -> AsyncGenerator[bytes, None]:
        """See `Api`. The client's own deadline ends a watch whose server has gone silent."""
        async with _translated():
            told = {"watch": True, "resource_version": version, "timeout_seconds": int(for_s)}
            async with await self._get(for_s + 1, **told) as response:
                if response.status != 200:
                    await _checked(response)
                while data := await response.content.readany():
                    yield data

    async def _get(self, timeout_s: float, **told: Any) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._list_timeout_s / 2)
        response: aiohttp.ClientResponse = await self._ask(
            self._namespace,
            label_selector=self._selector,
            _preload_content=False,
            _request_timeout=timeout,
            **told,
        )
        return response


def pods(api: client.ApiClient, namespace: str, select: Select) -> KubernetesApi:
    return KubernetesApi(client.CoreV1Api(api).list_namespaced_pod, namespace, select)


def slices(api: client.ApiClient, namespace: str, service: str) -> KubernetesApi:
    """The EndpointSlices of a Service."""
    ask = client.DiscoveryV1Api(api).list_namespaced_endpoint_slice
    return KubernetesApi(ask, namespace, constant(f"kubernetes.io/service-name={service}"))


def constant(selector: str) -> Select:
    async def select() -> str:
        return selector

    return select


def selector_of_pool(api: client.ApiClient, namespace: str, pool: str) -> Select:
    """The label selector of an InferencePool (v1), asked for before each list."""
    objects = client.CustomObjectsApi(api)

    async def select() -> str:
        async with await objects.get_namespaced_custom_object(
            POOL_GROUP, "v1", namespace, "inferencepools", pool,
            _preload_content=False, _request_timeout=LIST_TIMEOUT_S,
        ) as response:  # fmt: skip
            body = await _checked(response)
        try:
            labels = msgspec.json.decode(body)["spec"]["selector"]["matchLabels"]
            return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as exc:
            raise ApiUnusable(f"the InferencePool {pool} has no selector") from exc

    return select


async def connect(kubeconfig: str | None) -> client.ApiClient:
    """A client with a pod's own rights, or a kubeconfig's. ApiUnusable: there are none."""
    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
        else:
            await config.load_kube_config(
                kubeconfig, client_configuration=settings, persist_config=False
            )
    except (config.ConfigException, OSError) as exc:
        raise ApiUnusable(str(exc)) from exc
    return client.ApiClient(settings)


def own_namespace(file: Path = NAMESPACE_FILE) -> str:
    """That of the pod that this runs in, else `default`."""
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return "default"


async def _checked(response: aiohttp.ClientResponse) -> bytes:
    body = await response.read()
    if response.status != 200:
        raise ApiUnusable(f"{response.status} {response.reason} for {response.url.path}")
    return body


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except TimeoutError:
        raise ApiUnusable("no answer in time") from None
    except (aiohttp.ClientError, OSError, client.ApiException) as exc:
        raise ApiUnusable(str(exc) or type(exc).__name__) from exc
