"""InferencePool v1 as a structural definition that an API server checks and prunes by.

Written after the Gateway API Inference Extension's own, which no package holds: its fields and
bounds, without its status, texts and rules of CEL (which 1.20 has not).
"""

from __future__ import annotations

from typing import Any

from kubernetes_asyncio import client

from router.replicas.kube_api import POOL_GROUP
from tests.support.processes import until

Thing = dict[str, Any]

_TEXT: Thing = {"type": "string", "maxLength": 253}
_NUMBER: Thing = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535}


def _of(properties: Thing, *required: str) -> Thing:
    return {"type": "object", "properties": properties, "required": list(required)}


_LABELS: Thing = {
    "type": "object", "minProperties": 1, "maxProperties": 64,
    "additionalProperties": {"type": "string", "maxLength": 63},
}  # fmt: skip
_PICKER = _of({
    "group": _TEXT, "kind": {**_TEXT, "maxLength": 63}, "name": {**_TEXT, "minLength": 1},
    "port": _of({"number": _NUMBER}, "number"),
    "failureMode": {"type": "string", "enum": ["FailOpen", "FailClose"]},
}, "name")  # fmt: skip
_PORTS: Thing = {
    "type": "array", "minItems": 1, "maxItems": 8, "items": _of({"number": _NUMBER}, "number"),
}  # fmt: skip
_SPEC = _of(
    {
        "selector": _of({"matchLabels": _LABELS}, "matchLabels"),
        "targetPorts": _PORTS,
        "endpointPickerRef": _PICKER,
    },
    "selector", "targetPorts", "endpointPickerRef",
)  # fmt: skip
DEFINITION: Thing = {
    "metadata": {
        "name": f"inferencepools.{POOL_GROUP}",
        # this server lets nobody else define what belongs to Kubernetes
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs"},
    },
    "spec": {
        "group": POOL_GROUP, "scope": "Namespaced",
        "names": {"plural": "inferencepools", "kind": "InferencePool"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": _of({"spec": _SPEC}, "spec")},
        }],
    },
}  # fmt: skip


def pool(name: str, **spec: Any) -> Thing:
    """Of the pods `app: vllm`, but for what `spec` says."""
    whole = {
        "selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    }  # fmt: skip
    return {
        "apiVersion": f"{POOL_GROUP}/v1", "kind": "InferencePool", "metadata": {"name": name},
        "spec": {**whole, **spec},
    }  # fmt: skip


async def define_pools(api: client.ApiClient) -> None:
    await client.ApiextensionsV1Api(api).create_custom_resource_definition(DEFINITION)


async def create_pool(api: client.ApiClient, namespace: str, thing: Thing) -> Thing:
    """What the server made of it; ApiException 422 if it is none. Waits for the definition."""
    made: list[Thing] = []
    objects, where = client.CustomObjectsApi(api), (POOL_GROUP, "v1", namespace, "inferencepools")

    async def is_known() -> bool:
        try:
            made.append(await objects.create_namespaced_custom_object(*where, thing))
        except client.ApiException as exc:
            if exc.status != 404:
                raise
        return bool(made)

    await until(is_known)
    return made[0]
