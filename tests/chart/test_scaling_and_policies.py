"""What scales, by metrics that exist, and who may talk to whom."""

import kubernetes_validate
import pytest
import yaml

from router.collectors import ReplicaSample
from router.metrics import Metrics
from tests.support.helm import EXAMPLES, ROOT, flags, helm_binary, render
from tests.support.prometheus import names_in

pytestmark = pytest.mark.skipif(helm_binary() is None, reason="needs helm (HELM or PATH)")
VERSIONS = ("1.28", "1.33", "1.37")
BY_NAME = {path.stem: path for path in EXAMPLES}
REPLICAS = [ReplicaSample("r1", True, False, 0, 0, 0, "exact", "", 0, 0, 0)]


def test_keda_scales_what_exists_by_metrics_that_exist():
    more = ("--set-json", "autoscaling.keda.predictedTtftSeconds=1.5")
    objects = render("-f", str(BY_NAME["keys-and-scaling"]), *more)
    assert not objects.of("HorizontalPodAutoscaler")
    names = {(t["kind"], t["metadata"]["name"]) for t in objects}
    known = {family.name for family in Metrics(lambda: REPLICAS).registry.collect()}
    scaled = objects.of("ScaledObject")
    assert len(scaled) == 2
    for thing in scaled:
        target = thing["spec"]["scaleTargetRef"]
        assert (target.get("kind", "Deployment"), target["name"]) in names
        for trigger in thing["spec"]["triggers"]:
            asked = names_in(trigger["metadata"]["query"])
            assert asked
            assert asked <= known
            assert float(trigger["metadata"]["threshold"]) > 0
    for workload in objects.workloads():
        is_scaled = workload["metadata"]["name"] in {t["metadata"]["name"] for t in scaled}
        assert ("replicas" in workload["spec"]) is not is_scaled


def test_routers_scale_by_what_the_metrics_adapter_serves():
    pairs = ("autoscaling.enabled=true", "autoscaling.inFlight=200")
    more = ("--set-json", "autoscaling.predictedTtftSeconds=1.5")
    objects = render(*flags(*pairs), *more)
    metrics = objects.one("HorizontalPodAutoscaler")["spec"]["metrics"]
    for version in VERSIONS:
        for thing in objects.of("HorizontalPodAutoscaler"):
            kubernetes_validate.validate(thing, version, strict=True)
    rules = yaml.safe_load((ROOT / "k8s/examples/metrics-adapter/values.yaml").read_text())["rules"]
    (pods,), (external,) = rules["custom"], rules["external"]
    by_type = {metric["type"]: metric for metric in metrics}
    asked = by_type["Pods"]["pods"]
    assert pods["seriesQuery"].startswith(asked["metric"]["name"] + "{")
    assert asked["target"] == {"type": "AverageValue", "averageValue": "200"}
    asked = by_type["External"]["external"]
    assert external["name"]["as"] == asked["metric"]["name"]
    assert asked["target"] == {"type": "Value", "value": "1500"}
    known = {family.name for family in Metrics(lambda: REPLICAS).registry.collect()}
    assert names_in(pods["seriesQuery"]) | names_in(external["seriesQuery"]) <= known
    assert len(render(*flags(pairs[0])).one("HorizontalPodAutoscaler")["spec"]["metrics"]) == 1


def test_engines_admit_routers_and_whoever_monitors():
    peer = "networkPolicy.monitoring[0].podSelector.matchLabels.app=prometheus"
    objects = render("-f", str(BY_NAME["one-model"]), *flags(peer))
    policy = objects.one("NetworkPolicy", "demo-warmgate-engines")["spec"]
    admitted = [
        (source["podSelector"]["matchLabels"], {port["port"] for port in rule.get("ports", ())})
        for rule in policy["ingress"]
        for source in rule["from"]
    ]
    router = objects.one("Deployment", "demo-warmgate")["spec"]["selector"]["matchLabels"]
    assert admitted[0] == (router, {"http", "events", "replay"})
    assert admitted[1] == ({"app": "prometheus"}, {"http"})
    assert admitted[2] == (policy["podSelector"]["matchLabels"], set())
    assert not render().of("NetworkPolicy", "demo-warmgate-engines")
