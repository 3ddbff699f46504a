"""The chart, rendered by a real Helm: valid objects, restricted pods, no spare rights."""

import tomllib

import kubernetes_validate
import pytest
import yaml

from router.cli import make_parser as router_parser
from router.config import parse_config
from router.tenants import read_keys
from tests.support.discoveries import followed, kube_world
from tests.support.helm import CHART, EXAMPLES, ROOT, flags, helm, helm_binary, render
from tests.support.processes import until
from workers.cli import make_parser as worker_parser

pytestmark = pytest.mark.skipif(helm_binary() is None, reason="needs helm (HELM or PATH)")
VERSIONS = ("1.28", "1.33", "1.37")
CUSTOM = {"ServiceMonitor", "PrometheusRule", "HTTPRoute", "ScaledObject"}
BY_NAME = {path.stem: path for path in EXAMPLES}
SOURCES = {"pods": "discovery.selector=app=vllm", "service": "discovery.service=vllm"}


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.stem)
def rendered(request):
    return render("-f", str(request.param))


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda p: p.stem if p else "defaults")
def test_the_chart_lints(example):
    done = helm("lint", "--strict", str(CHART), *(["-f", str(example)] if example else []))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid_for_kubernetes(rendered, version):
    for thing in rendered:
        if thing["kind"] not in CUSTOM:
            kubernetes_validate.validate(thing, version, strict=True)


def test_the_routers_settings_are_valid(rendered):
    assert parse_config(rendered.config()).listen.admin_port == 9090


def test_every_pod_is_restricted(rendered):
    for pod in rendered.pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]


def test_only_what_asks_the_api_has_a_token(rendered):
    source = rendered.config()["discovery"]["source"]
    for pod in rendered.pods():
        is_router = pod["containers"][0]["name"] == "router"
        expected = is_router and source == "kubernetes"
        assert pod["automountServiceAccountToken"] is expected
    assert bool(rendered.of("Role")) is (source == "kubernetes")


def test_services_and_policies_select_pods_that_exist(rendered):
    labels = [t["spec"]["template"]["metadata"]["labels"] for t in rendered.workloads()]
    selectors = [t["spec"]["selector"] for t in rendered.of("Service")]
    kinds = ("Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy")
    for thing in (t for kind in kinds for t in rendered.of(kind)):
        spec = thing["spec"]
        selectors.append((spec.get("podSelector") or spec["selector"])["matchLabels"])
    for selector in selectors:
        assert sum(selector.items() <= pod.items() for pod in labels) >= 1, selector


def test_no_two_deployments_share_pods(rendered):
    deployments = rendered.workloads()
    for one in deployments:
        selector = one["spec"]["selector"]["matchLabels"].items()
        owned = [
            t["metadata"]["name"]
            for t in deployments
            if selector <= t["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert owned == [one["metadata"]["name"]]


def test_ports_that_are_pointed_at_exist(rendered):
    for deployment in rendered.workloads():
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        names = {port["name"] for port in container["ports"]}
        probes = [container[key] for key in container if key.endswith("Probe")]
        asked = {(p.get("httpGet") or p.get("tcpSocket"))["port"] for p in probes}
        assert asked <= names


def test_names_are_unique(rendered):
    keys = [(thing["kind"], thing["metadata"]["name"]) for thing in rendered]
    assert len(keys) == len(set(keys))


def test_the_grace_period_is_longer_than_settling_and_draining():
    objects = render(*flags("drainSeconds=120", "settleSeconds=7"))
    pod = objects.one("Deployment")["spec"]["template"]["spec"]
    listen = parse_config(objects.config()).listen
    assert (listen.settle_s, listen.drain_s) == (7, 120)
    assert pod["terminationGracePeriodSeconds"] >= 127 + 10


def test_a_changed_setting_starts_new_pods_and_an_equal_one_does_not():
    def checksum(*pairs):
        pod = render(*flags(*pairs)).one("Deployment")["spec"]["template"]
        return pod["metadata"]["annotations"]["checksum/config"]

    assert checksum() == checksum("service.port=81")
    assert checksum() != checksum("config.log.level=debug")


def test_config_goes_before_what_the_chart_makes():
    objects = render(*flags("config.listen.drain_s=1", "config.routing.policy=session"))
    config = parse_config(objects.config())
    assert (config.listen.drain_s, config.listen.admin_port) == (1, 9090)
    assert config.routing.policy == "session"


@pytest.mark.parametrize("kind", SOURCES)
async def test_the_role_grants_what_discovery_asks_for_and_nothing_else(kind):
    async with kube_world(by_slices=kind == "service") as world:
        await world.set({"a": "10.0.0.1"})
        async with followed(world.discovery) as seen:
            await seen.reach("http://10.0.0.1:8000")

            async def is_watched():
                return world.fake.watches > 0

            await until(is_watched)
        assert granted(*flags(SOURCES[kind])) == world.fake.asked


def test_an_inference_pool_may_be_read_by_its_name_alone():
    rights = granted(*flags("discovery.inferencePool=p"))
    assert rights == {("pods", "list"), ("pods", "watch"), ("inferencepools", "get")}
    rules = render(*flags("discovery.inferencePool=p")).one("Role")["rules"]
    assert rules[1]["resourceNames"] == ["p"]


def granted(*args):
    rules = render(*args).one("Role")["rules"]
    return {(r, verb) for rule in rules for r in rule["resources"] for verb in rule["verbs"]}


def test_the_role_is_where_the_pods_are():
    objects = render("-f", str(BY_NAME["many-routers"]))
    assert objects.one("Role")["metadata"]["namespace"] == "models"
    assert objects.one("RoleBinding")["subjects"][0]["namespace"] == "llm"
    assert objects.config()["discovery"]["namespace"] == "models"


def test_engines_are_what_the_router_looks_for():
    objects = render("-f", str(BY_NAME["several-models"]))
    wanted = dict(p.split("=") for p in objects.config()["discovery"]["selector"].split(","))
    engines = [d for d in objects.of("Deployment") if "warmgate/engine" in d["metadata"]["labels"]]
    assert len(engines) == 2
    for engine in engines:
        pod = engine["spec"]["template"]
        assert wanted.items() <= pod["metadata"]["labels"].items()
        args = pod["spec"]["containers"][0]["args"]
        told = next(a for a in args if a.startswith("--kv-events-config=")).partition("=")[2]
        events = yaml.safe_load(told)
        notes = pod["metadata"]["annotations"]
        assert events["endpoint"].endswith(":" + notes["warmgate/events-port"])
        assert events["replay_endpoint"].endswith(":" + notes["warmgate/replay-port"])
        assert events["topic"] == objects.config()["discovery"]["topic"]
        assert notes["warmgate/model"] == args[0]


def test_commands_are_ours_and_their_flags_exist():
    objects = render("-f", str(BY_NAME["trial-without-gpu"]))
    engine = container_of(objects, "demo-warmgate-embedded")
    assert engine["command"] == ["warmgate-worker"]
    told = worker_parser().parse_args(engine["args"])
    config = parse_config(objects.config())
    assert (told.port, told.events_port) == (config.discovery.port, config.discovery.events_port)
    assert (told.replay_port, told.topic) == (config.discovery.replay_port, "kv-events")
    router = container_of(objects, "demo-warmgate")
    assert router["command"] == ["warmgate"]
    router_parser().parse_args(router["args"])


def container_of(objects, deployment):
    return objects.one("Deployment", deployment)["spec"]["template"]["spec"]["containers"][0]


def test_keys_are_a_secret_that_the_router_reads():
    objects = render("-f", str(BY_NAME["keys-and-scaling"]))
    keys = objects.one("Secret")
    config = parse_config(objects.config())
    pod = objects.one("Deployment", "demo-warmgate")["spec"]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "keys"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "keys"]
    assert volume["secret"]["secretName"] == keys["metadata"]["name"]
    assert config.tenants.keys_file == f"{mount['mountPath']}/keys.yaml"
    assert "sha256" not in objects.one("ConfigMap", "demo-warmgate")["data"]["router.yaml"]


def test_rendered_keys_are_a_key_file(tmp_path):
    objects = render("-f", str(BY_NAME["keys-and-scaling"]))
    (tmp_path / "keys.yaml").write_text(objects.one("Secret")["stringData"]["keys.yaml"])
    # the hash in the example is of this word
    tenant = read_keys(tmp_path / "keys.yaml").find("test")
    assert tenant is not None
    assert tenant.id == "search-team"


def test_keys_may_be_a_secret_that_exists():
    objects = render(*flags("tenants.existingSecret=mine"))
    assert not objects.of("Secret")
    volumes = objects.one("Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "mine", "defaultMode": 0o440} in [v.get("secret") for v in volumes]
    assert parse_config(objects.config()).tenants.keys_file
    assert "401" in objects.one("Pod")["spec"]["containers"][0]["args"][0]


def test_a_stateful_engine_has_a_claim_of_its_own():
    engine = render("-f", str(BY_NAME["keys-and-scaling"])).one("StatefulSet")["spec"]
    (claim,) = engine["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Gi"
    assert claim["metadata"]["name"] not in {
        v["name"] for v in engine["template"]["spec"]["volumes"]
    }
    assert engine["serviceName"] == "demo-warmgate-engines"


def test_engines_may_end_after_routers_have_left_them():
    objects = render("-f", str(BY_NAME["one-model"]))
    pod = objects.one("Deployment", "demo-warmgate-llama")["spec"]["template"]["spec"]
    assert pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "20"]
    assert pod["terminationGracePeriodSeconds"] >= 20 + 60


def test_one_router_has_no_budget_that_would_block_a_node_and_many_have():
    assert not render().of("PodDisruptionBudget")
    assert render(*flags("replicas=2")).of("PodDisruptionBudget")
    many = render(*flags("autoscaling.enabled=true"))
    assert many.of("PodDisruptionBudget")
    assert "replicas" not in many.one("Deployment")["spec"]


@pytest.mark.parametrize(
    "pairs",
    [
        "replicaCount=3",
        "replicas=three",
        "discovery.source=magic",
        "image.pullPolicy=Sometimes",
        "engines.vllm[0].name=x",
        "engines.vllm[0].name=Not_A_Label,engines.vllm[0].model=m",
        "service.port=0",
        "discovery.selector=",
        "ingress.enabled=true",
        "httpRoute.enabled=true",
        "tenants.list[0].id=a,tenants.list[0].keys[0]=plain",
        "autoscaling.enabled=true,autoscaling.keda.enabled=true",
    ],
)
def test_values_that_cannot_work_are_refused(pairs):
    assert helm("template", "demo", str(CHART), "--set", pairs).returncode != 0


def test_the_notes_name_the_next_step():
    done = helm("install", "demo", str(CHART), "-n", "llm", "--dry-run=client")
    notes = done.stdout.partition("NOTES:")[2]
    assert "helm -n llm test demo" in notes, done.stderr
    assert "app=vllm" in notes


def test_versions_move_with_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (package, package)


def test_every_value_has_a_schema():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
