"""Real engines and a real router, started afresh and ended."""

import json

import psutil
import pytest

from loadgen.stack import StackError, StackOptions, open_stack
from tests.support.loadgen import EXCERPT, warmgate_load


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def test_published_trace_goes_through_router_and_engines_without_an_error(tmp_path):
    report = tmp_path / "run.json"
    options = StackOptions(log_dir=tmp_path, replicas=2, profile="h200-8b-fp8", num_blocks=4096)
    before = children()
    async with open_stack(options, "cache-aware") as stack:
        assert len(children() - before) == 3
        code, out, _ = await warmgate_load(
            *("run", "--url", stack.url, "--model", stack.model, "--workload", "trace"),
            *("--trace", str(EXCERPT), "--trace-scale", "0.02", "--speed-up", "20"),
            *("--tokenize-url", stack.tokenize_url, "--json", str(report)),
        )
    assert children() == before
    summary = json.loads(report.read_text())["summary"]
    assert (code, summary["errors"], summary["ok"]) == (0, 0, 300), out
    assert summary["hit_rate"] <= summary["hit_rate_bound"] + 0.001
    assert {share["id"] for share in summary["replicas"]} == {"r1", "r2"}


async def test_each_policy_starts_with_empty_caches(tmp_path):
    path = tmp_path / "compare.json"
    code, _, _ = await warmgate_load(
        *("compare", "--policy", "round-robin", "--policy", "cache-aware", "--replicas", "2"),
        *("--profile", "h200-8b-fp8", "--workload", "multi-turn", "--num-requests", "16"),
        *("--turns", "4", "--think-s", "0.05", "--system-tokens", "200", "--cache", "as-is"),
        *("--session-rate", "10", "--output-tokens", "4"),
        *("--log-dir", str(tmp_path / "logs"), "--json", str(path)),
    )
    assert code == 0
    for run in json.loads(path.read_text())["runs"]:
        assert run["errors"] == 0
        assert 0 < run["hit_rate"] <= run["hit_rate_bound"] + 0.001


async def test_process_that_does_not_come_up_is_named_with_its_last_words(tmp_path):
    options = StackOptions(log_dir=tmp_path, replicas=1, profile="no-such-profile")
    before = children()
    with pytest.raises(StackError, match="cache-aware-r1"):
        async with open_stack(options, "cache-aware"):
            pass
    assert children() == before
