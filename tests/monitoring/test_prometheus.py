"""A real Prometheus understands our metrics, rules and dashboards, and has data for them."""

import asyncio
import subprocess

import pytest
import yaml

from router.tenants import hash_key
from tests.support.processes import MODEL_DIR, fleet
from tests.support.prometheus import (
    ROOT,
    RULES,
    binary,
    free_port,
    queries,
    scraping,
    series_in,
    series_of_rules_test,
)

pytestmark = pytest.mark.skipif(
    binary("promtool") is None or binary("prometheus") is None,
    reason="needs prometheus and promtool (PROMETHEUS_BIN or PATH)",
)
KEY, POOR = "wg-of-a-test", "wg-of-a-poor-one"


def promtool(*arguments, stdin=""):
    return subprocess.run(
        [str(binary("promtool")), *arguments],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_promtool_accepts_the_rules():
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stderr


def test_promtool_accepts_the_configuration():
    config = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    done = promtool("check", "config", "--syntax-only", str(config))
    assert done.returncode == 0, done.stderr


def test_each_alert_fires_when_caused_and_none_when_all_is_well():
    done = promtool("test", "rules", str(ROOT / "deploy" / "prometheus" / "rules_test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


async def test_every_dashboard_query_and_record_has_data_from_a_loaded_router(tmp_path):
    admin, keys = free_port(), tmp_path / "keys.yaml"
    rich = {"id": "rich", "keys": [hash_key(KEY)], "tokens_per_minute": 10**6}
    poor = {"id": "poor", "keys": [hash_key(POOR)], "requests_per_minute": 1}
    keys.write_text(yaml.safe_dump({"tenants": [rich, poor]}))
    sets = (f"--set=listen.admin_port={admin}", f"--set=tenants.keys_file={keys}")
    flags = (*sets, "--tokenizer", str(MODEL_DIR))
    async with fleet(2, router_flags=flags) as running:
        async with scraping(f"127.0.0.1:{admin}", tmp_path) as prometheus:
            assert set(await load(running, 12)) == {200}
            await break_off(running, 1.0)
            assert min(await load(running, 1)) >= 500
            await break_off(running, 0.0)
            await running.engines[1].kill()
            assert set(await load(running, 12)) == {200}
            # three requests touch two minutes at most: one of them is refused
            assert 429 in await load(running, 3, POOR)
            missing = await eventually(prometheus, [expr for _, _, expr in queries()])
            assert missing == []
            assert await eventually(prometheus, ["warmgate:ttft_seconds:p95_5m"]) == []
        async with running.session.get(f"http://127.0.0.1:{admin}/metrics") as response:
            text = await response.text()
    assert series_of_rules_test() <= series_in(text)
    done = promtool("check", "metrics", stdin=text)
    assert done.returncode == 0, done.stdout + done.stderr


async def break_off(running, chance):
    """Engines reset requests before they answer, with this chance: tried elsewhere, and failed."""
    for engine in running.engines:
        faults = {"http": {"reset": chance}}
        async with running.session.post(engine.url + "/faults", json=faults) as reply:
            assert reply.status == 200


async def load(running, count, key=KEY):
    """Long prompts with a common beginning, streamed. Returns the replies' statuses."""
    statuses = []
    url, bearer = running.router.url + "/v1/completions", {"Authorization": f"Bearer {key}"}
    for number in range(count):
        prompt = "The quick brown fox jumps over the lazy dog. " * 30 + f"Number {number % 3}?"
        body = {"model": running.model, "prompt": prompt, "max_tokens": 2, "stream": True}
        body["stream_options"] = {"include_usage": True}
        async with running.session.post(url, json=body, headers=bearer) as response:
            await response.read()
            statuses.append(response.status)
        await asyncio.sleep(0.1)  # so that several scrapes see the counters move
    return statuses


async def eventually(prometheus, exprs, within_s=20.0):
    """Those that still have no data by then."""
    loop = asyncio.get_running_loop()
    end, missing = loop.time() + within_s, list(exprs)
    while missing and loop.time() < end:
        missing = [expr for expr in missing if not await prometheus.query(expr)]
        await asyncio.sleep(0.5)
    return missing
