"""A real Prometheus understands our metrics, rules and dashboards, and has data for them."""

import asyncio
import subprocess

import pytest

from tests.support.processes import MODEL_DIR, fleet
from tests.support.prometheus import ROOT, RULES, binary, free_port, names_in, queries, scraping

pytestmark = pytest.mark.skipif(
    binary("promtool") is None or binary("prometheus") is None,
    reason="needs prometheus and promtool (PROMETHEUS_BIN or PATH)",
)
# Series that exist only once something has gone wrong that this test does not cause.
RARE = {"warmgate_tokenize_failures_total", "warmgate_task_restarts_total"}


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
    admin = free_port()
    flags = (f"--set=listen.admin_port={admin}", "--tokenizer", str(MODEL_DIR))
    async with fleet(2, router_flags=flags) as running:
        async with scraping(f"127.0.0.1:{admin}", tmp_path) as prometheus:
            await load(running, 12)
            await running.engines[1].kill()
            await load(running, 12)
            missing = await eventually(prometheus, [expr for _, _, expr in queries()])
            assert [expr for expr in missing if not names_in(expr) & RARE] == []
            assert await eventually(prometheus, ["warmgate:ttft_seconds:p95_5m"]) == []
        async with running.session.get(f"http://127.0.0.1:{admin}/metrics") as response:
            text = await response.text()
    done = promtool("check", "metrics", stdin=text)
    assert done.returncode == 0, done.stdout + done.stderr


async def load(running, count):
    """Long prompts with a common beginning, streamed, some of them at once."""
    url = running.router.url + "/v1/completions"
    for number in range(count):
        prompt = "The quick brown fox jumps over the lazy dog. " * 30 + f"Number {number % 3}?"
        body = {"model": running.model, "prompt": prompt, "max_tokens": 2, "stream": True}
        body["stream_options"] = {"include_usage": True}
        async with running.session.post(url, json=body) as response:
            await response.read()
            assert response.status == 200
        await asyncio.sleep(0.1)  # so that several scrapes see the counters move


async def eventually(prometheus, exprs, within_s=20.0):
    """Those that still have no data by then."""
    loop = asyncio.get_running_loop()
    end, missing = loop.time() + within_s, list(exprs)
    while missing and loop.time() < end:
        missing = [expr for expr in missing if not await prometheus.query(expr)]
        if all(names_in(expr) & RARE for expr in missing):
            break
        await asyncio.sleep(0.5)
    return missing
