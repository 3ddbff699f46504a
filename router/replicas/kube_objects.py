"""The few fields of Kubernetes' objects that discovery reads, and the replicas they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from router.replicas.ports import Ports
from router.replicas.replica import Replica, Role

PREFIX: Final = "warmgate/"
"""Of the annotations `port`, `events-port`, `replay-port`, `topic`, `ranks` and `scheme`, and of
the labels and annotations `model`, `adapter` and `role`."""
ROLES: Final[Mapping[str, Role]] = {
    "both": "both", "prefill-decode": "both", "decode": "decode", "prefill": "prefill",
    "encode": "encode",
}  # fmt: skip


class _Fields(msgspec.Struct, frozen=True, rename="camel"):
    """Unknown fields are skipped unread: a pod is 10 kB, of which this needs 200 bytes."""


class Meta(_Fields, frozen=True):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _Condition(_Fields, frozen=True):
    type: str
    status: str


class _PodStatus(_Fields, frozen=True):
    pod_ip: str = msgspec.field(name="podIP", default="")
    phase: str = ""
    conditions: tuple[_Condition, ...] | None = None


class _Ready(_Fields, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class _Target(_Fields, frozen=True):
    name: str = ""


class _Endpoint(_Fields, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: _Ready | None = None
    target_ref: _Target | None = None


class _Port(_Fields, frozen=True):
    name: str | None = None
    port: int | None = None


class Thing(_Fields, frozen=True):
    """A Pod, an EndpointSlice, a Status or a bookmark."""

    metadata: Meta = Meta()
    status: _PodStatus | str | None = None
    endpoints: tuple[_Endpoint, ...] | None = None
    ports: tuple[_Port, ...] | None = None
    code: int = 0
    message: str = ""


class Listing(_Fields, frozen=True):
    metadata: Meta = Meta()
    items: tuple[Thing, ...] | None = None


class Event(_Fields, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: Thing = Thing()


@dataclass(frozen=True, slots=True)
class LabelNames:
    """Labels that say what a pod serves. An annotation of the same name goes before: the value of
    a label holds neither the slash of a model's name nor the commas of a list."""

    model: str = PREFIX + "model"
    adapter: str = PREFIX + "adapter"
    role: str = PREFIX + "role"


LABELS: Final = LabelNames()


def replicas_of_pod(pod: Thing, ports: Ports, names: LabelNames = LABELS) -> Iterator[Replica]:
    """None unless it is ready and nobody has asked it to end. ValueError: a bad annotation, or a
    role that is none."""
    status = pod.status
    if not isinstance(status, _PodStatus) or not status.pod_ip or status.phase != "Running":
        return
    is_ready = any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())
    if is_ready and pod.metadata.deletion_timestamp is None:
        own = annotated(ports, pod.metadata.annotations or {})
        yield from labelled(own.replicas(pod.metadata.name, status.pod_ip), pod.metadata, names)


def replicas_of_slice(slice_: Thing, ports: Ports, names: LabelNames = LABELS) -> Iterator[Replica]:
    """Ready endpoints. Ports named `http`, `events`, `replay` go before configured ones; the only
    port of a slice is `http` whatever its name. `ready` unset means ready, says the API. Labels
    are the Service's, which its slices carry."""
    named = {port.name: port.port for port in slice_.ports or () if port.port is not None}
    only = next(iter(named.values())) if len(named) == 1 else ports.http
    own = _with(
        ports, http=named.get("http", only), events=named.get("events"), replay=named.get("replay")
    )
    for endpoint in slice_.endpoints or ():
        conditions = endpoint.conditions or _Ready()
        if conditions.ready is not False and not conditions.terminating and endpoint.addresses:
            name = endpoint.target_ref.name if endpoint.target_ref is not None else ""
            found = own.replicas(name, endpoint.addresses[0])
            yield from labelled(found, slice_.metadata, names)


def labelled(replicas: Iterator[Replica], meta: Meta, names: LabelNames) -> Iterator[Replica]:
    """The replicas with what labels and annotations say of all of them."""
    said = {**(meta.labels or {}), **(meta.annotations or {})}
    model, adapters = said.get(names.model, ""), said.get(names.adapter, "")
    role = ROLES.get(said.get(names.role, "both"))
    if role is None:
        raise ValueError(f"{names.role} is {said[names.role]!r}, none of {', '.join(ROLES)}")
    if not model and not adapters and role == "both":
        yield from replicas
        return
    listed = tuple(filter(None, (part.strip() for part in adapters.split(","))))
    for replica in replicas:
        yield replace(replica, model=model, adapters=listed, role=role)


def annotated(ports: Ports, annotations: Mapping[str, str]) -> Ports:
    """Ports with what a pod's annotations say of them. ValueError if one is no number."""
    own = {k.removeprefix(PREFIX): v for k, v in annotations.items() if k.startswith(PREFIX)}
    return _with(
        ports,
        http=_number(own, "port"),
        events=_number(own, "events-port"),
        replay=_number(own, "replay-port"),
        ranks=_number(own, "ranks"),
        topic=own.get("topic"),
        scheme=own.get("scheme"),
    )


def _with(ports: Ports, **changes: Any) -> Ports:
    told = {name: value for name, value in changes.items() if value is not None}
    return replace(ports, **told) if told else ports


def _number(own: Mapping[str, str], name: str) -> int | None:
    if name not in own:
        return None
    if not own[name].isdecimal() or not 0 < int(own[name]) < 65536:
        raise ValueError(f"annotation {PREFIX}{name} is {own[name]!r}, not a number up to 65535")
    return int(own[name])
