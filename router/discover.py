"""Builds the discovery that the settings ask for."""

from contextlib import AsyncExitStack
from pathlib import Path

from router.config import ConfigError, parse_replicas
from router.replicas.discovery import Discovery, StaticDiscovery
from router.replicas.dns_discovery import DnsDiscovery
from router.replicas.file_discovery import FileDiscovery
from router.replicas.kube_objects import LabelNames, replicas_of_pod, replicas_of_slice
from router.replicas.kubernetes import ApiUnusable, KubernetesDiscovery
from router.replicas.ports import Ports
from router.settings import DiscoverySettings


async def discover(
    told: DiscoverySettings, named: StaticDiscovery, stack: AsyncExitStack
) -> Discovery:
    """`named` for static; `stack` closes what is opened. ConfigError: no API to ask."""
    if told.source == "file":
        return FileDiscovery(Path(told.file or ""), parse_replicas, interval_s=told.interval_s)
    if told.source == "dns":
        return DnsDiscovery(told.name or "", ports_of(told), interval_s=told.interval_s)
    if told.source == "kubernetes":
        return await _kubernetes(told, stack)
    return named


def ports_of(told: DiscoverySettings) -> Ports:
    return Ports(
        http=told.port,
        events=told.events_port,
        replay=told.replay_port,
        topic=told.topic,
        ranks=told.ranks,
        scheme=told.scheme,
    )


async def _kubernetes(told: DiscoverySettings, stack: AsyncExitStack) -> KubernetesDiscovery:
    try:  # an extra: half a second of importing that other sources need not pay
        from router.replicas import kube_api
    except ModuleNotFoundError as exc:
        raise ConfigError("discovery.source kubernetes needs: pip install warmgate[k8s]") from exc
    try:
        api = await kube_api.connect(told.kubeconfig)
    except ApiUnusable as exc:
        raise ConfigError(f"discovery: {exc}") from exc
    stack.push_async_callback(api.close)
    namespace = told.namespace or kube_api.own_namespace()
    ports, names = ports_of(told), LabelNames(**told.labels)
    if told.service is not None:
        source = kube_api.slices(api, namespace, told.service)
        return KubernetesDiscovery(
            source, lambda t: replicas_of_slice(t, ports, names), told.relist_s
        )
    select = kube_api.constant(told.selector or "")
    if told.inference_pool is not None:
        select = kube_api.selector_of_pool(api, namespace, told.inference_pool)
    source = kube_api.pods(api, namespace, select)
    return KubernetesDiscovery(source, lambda t: replicas_of_pod(t, ports, names), told.relist_s)
