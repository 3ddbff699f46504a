"""Rules and dashboards name only what exists, and say enough."""

import json

import pytest
import yaml

from router.collectors import ReplicaSample, TokenizerSample
from router.metrics import Metrics
from router.record import Outcome, RequestRecord
from tests.support.prometheus import (
    DASHBOARDS,
    ROOT,
    names_in,
    queries,
    rules,
    series_in,
    series_of_rules_test,
)

ENDED = RequestRecord(
    "1", 0.0, model="m", replica="r1", outcome=Outcome.OK, stream=True, ttft_ms=1.0,
    predicted_ttft_ms=1.0, prompt_tokens=9, hit_tokens=1, predicted_hit_tokens=2,
    reachable_hit_tokens=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def metrics():
    replica = ReplicaSample("r1", True, False, 0, 0, 0, "exact", "", 0, 0, 0)
    tokenizer = TokenizerSample("m", True, {"equal": 1}, 0, 0, 0, 0)
    metrics = Metrics(lambda: [replica], lambda: [tokenizer])
    metrics.look()
    metrics.watch_index(lambda: 0, 1)
    metrics.count_request(ENDED)
    metrics.count_use("t", "tokens", 10, 1)
    return metrics


@pytest.fixture(scope="module")
def exposed_text(metrics):
    return metrics.exposition().decode()


@pytest.fixture(scope="module")
def exposed(metrics):
    families = metrics.registry.collect()
    return {f.name + ("_total" if f.type == "counter" else "") for f in families}


@pytest.mark.parametrize(("dashboard", "panel", "expr"), list(queries()))
def test_dashboards_ask_for_metrics_that_exist(dashboard, panel, expr, exposed):
    assert names_in(expr)
    assert names_in(expr) <= exposed


@pytest.mark.parametrize(
    "rule", list(rules()), ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_rules_use_metrics_and_records_that_exist(rule, exposed):
    records = {rule["record"] for rule in rules() if "record" in rule}
    used = {word for word in records if word in rule["expr"]}
    assert names_in(rule["expr"]) <= exposed
    assert names_in(rule["expr"]) or used


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_words_units_and_a_place_of_their_own(path):
    board = json.loads(path.read_text())
    places = set()
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        places.add((panel["gridPos"]["x"], panel["gridPos"]["y"]))
    assert len(places) == len(board["panels"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_alert_says_what_to_do_and_is_tested():
    told = (ROOT / "deploy" / "prometheus" / "rules_test.yaml").read_text()
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["action"]
            assert f'alertname="{rule["alert"]}"' in told


def test_alerts_are_tested_with_the_labels_that_series_have(exposed_text):
    assert series_of_rules_test() <= series_in(exposed_text)


def test_the_compose_file_mounts_what_is_there():
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            assert (ROOT / "deploy" / volume.split(":")[0]).exists(), volume


def test_reachable_hits_are_those_of_whoever_held_most(exposed_text):
    assert 'warmgate_reachable_hit_tokens_total{model="m"} 3.0' in exposed_text
    assert 'warmgate_predicted_hit_tokens_total{model="m"} 2.0' in exposed_text
