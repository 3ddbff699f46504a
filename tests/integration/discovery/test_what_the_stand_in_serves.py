"""The stand-in's objects are Kubernetes' own: by its published schemas and its client's models."""

import json

import kubernetes_validate
import pytest
from kubernetes_asyncio import client

from tests.support import kube

SLICE = kube.endpoint_slice("s", "engines", ("a", "10.0.0.1"), terminating=True, serving=True)
POD = kube.pod("a", "10.0.0.1", annotations={"warmgate/port": "8000"})
THINGS = {
    "V1EndpointSlice": {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **SLICE},
    "V1Pod": {"apiVersion": "v1", "kind": "Pod", **POD},
}


@pytest.mark.parametrize("version", ["1.28", "1.33", "1.37"])
@pytest.mark.parametrize("model", THINGS)
def test_objects_are_valid(model, version):
    kubernetes_validate.validate(THINGS[model], version, strict=True)


@pytest.mark.parametrize("model", THINGS)
async def test_the_official_clients_models_take_every_field(model):
    class Reply:
        data = json.dumps(THINGS[model])

    async with client.ApiClient() as api:
        thing = api.deserialize(Reply(), model)
        assert api.sanitize_for_serialization(thing) == THINGS[model]
