"""What labels and annotations of a pod say of the replica that it is."""

import msgspec
import pytest

from router.replicas.kube_objects import LabelNames, Thing, replicas_of_pod, replicas_of_slice
from router.replicas.ports import Ports
from tests.support import kube


def of_pod(names=None, *, labels=None, annotations=None):
    pod = kube.pod("a", "10.0.0.1", labels=labels, annotations=annotations)
    return list(replicas_of_pod(msgspec.convert(pod, Thing), Ports(), names or LabelNames()))


def said(replica):
    return replica.model, replica.adapters, replica.role


def test_labels_say_model_adapter_and_role():
    labels = {"warmgate/model": "llama", "warmgate/adapter": "style", "warmgate/role": "decode"}
    (replica,) = of_pod(labels=labels)
    assert said(replica) == ("llama", ("style",), "decode")


def test_without_labels_a_pod_says_nothing_and_does_everything():
    (replica,) = of_pod()
    assert said(replica) == ("", (), "both")


def test_annotations_hold_what_labels_cannot_and_go_before_them():
    notes = {"warmgate/model": "meta-llama/Llama-3.1-8B", "warmgate/adapter": "style, terse,"}
    (replica,) = of_pod(labels={"warmgate/model": "llama"}, annotations=notes)
    assert said(replica) == ("meta-llama/Llama-3.1-8B", ("style", "terse"), "both")


@pytest.mark.parametrize(
    ("told", "role"),
    [("prefill-decode", "both"), ("both", "both"), ("prefill", "prefill"), ("encode", "encode")],
)
def test_labels_may_have_other_names(told, role):
    names = LabelNames(role="llm-d.ai/role", model="model")
    (replica,) = of_pod(names, labels={"llm-d.ai/role": told, "model": "m"})
    assert said(replica) == ("m", (), role)


def test_an_unknown_role_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="warmgate/role is 'draft', none of both"):
        of_pod(labels={"warmgate/role": "draft"})


def test_every_rank_of_a_pod_has_its_labels():
    notes = {"warmgate/ranks": "2"}
    ranks = of_pod(labels={"warmgate/role": "decode"}, annotations=notes)
    assert [(r.rank, r.role) for r in ranks] == [(0, "decode"), (1, "decode")]


def test_a_slice_has_the_labels_of_its_service():
    thing = kube.endpoint_slice("s", "engines", ("a", "10.0.0.1"), ("b", "10.0.0.2"))
    thing["metadata"]["labels"]["warmgate/model"] = "llama"
    found = replicas_of_slice(msgspec.convert(thing, Thing), Ports())
    assert [r.model for r in found] == ["llama", "llama"]
