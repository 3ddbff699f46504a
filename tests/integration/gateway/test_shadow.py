"""Policies that are asked of live traffic and never act, as an operator sees them."""

import asyncio
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.cli import main
from router.config import ConfigError, parse_config
from tests.support.engines import chat_body, plain_engine
from tests.support.gateway import gateway


@pytest.fixture
async def engines():
    async with plain_engine() as one, plain_engine() as other:
        yield [{"id": "r1", "url": one.url}, {"id": "r2", "url": other.url}]


async def ask(served, times):
    for _ in range(times):
        async with served.client.post("/v1/chat/completions", data=chat_body()) as response:
            assert response.status == 200


async def test_live_traffic_is_compared_and_goes_where_the_acting_policy_says(
    engines, tmp_path, capsys
):
    routing = {"policy": "round-robin", "shadow": ["cache-aware", "session"]}
    async with gateway(engines, routing=routing) as served:
        await ask(served, 6)
        async with served.client.get("/debug/shadow") as response:
            answer = await response.json()
        async with served.client.get("/metrics") as response:
            text = await response.text()
        assert await asyncio.to_thread(main, ["shadow", "--url", served.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == answer
        assert await asyncio.to_thread(main, ["shadow", "--url", served.url]) == 0
        assert "round-robin acts" in capsys.readouterr().out
    rows = {row["policy"]: row for row in answer["policies"]}
    assert list(rows) == ["round-robin", "cache-aware", "session"]
    assert {row["requests"] for row in rows.values()} == {6}
    assert rows["round-robin"]["same_choice"] == 1.0
    assert rows["session"]["same_choice"] == pytest.approx(0.5)
    assert all(row["predicted_ttft_p95_ms"] > 0 for row in rows.values())
    shown = {family.name: family for family in text_string_to_metric_families(text)}
    choices = {
        (s.labels["policy"], s.labels["same"]): s.value
        for s in shown["warmgate_shadow_choices"].samples
    }
    assert choices["session", "yes"] == choices["session", "no"] == 3
    counts = [s for s in shown["warmgate_shadow_ttft_seconds"].samples if s.name.endswith("_count")]
    assert [s.value for s in counts] == [6, 6, 6]


async def test_without_shadows_nothing_is_compared(engines, capsys):
    async with gateway(engines) as served:
        await ask(served, 2)
        async with served.client.get("/debug/shadow") as response:
            assert (await response.json())["policies"] == []
        async with served.client.get("/metrics") as response:
            assert "warmgate_shadow_choices_total{" not in await response.text()
        assert await asyncio.to_thread(main, ["shadow", "--url", served.url]) == 0
    assert "routing.shadow is empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shadow", "words"),
    [
        (["best"], "routing.shadow is 'best'"),
        (["random", "random"], "named twice"),
        (["cache-aware"], "the policy that acts"),
    ],
)
def test_a_shadow_that_cannot_be_is_refused(shadow, words):
    with pytest.raises(ConfigError, match=words):
        parse_config({"routing": {"shadow": shadow}})
