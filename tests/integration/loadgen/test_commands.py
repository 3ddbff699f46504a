"""`warmgate-load` from the command line to its files, against scripted servers."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.loadgen import EXCERPT, Script, WordEngine, serve, warmgate_load

QUICK = ["--request-rate", "200", "--output-tokens", "4", "--seed", "5"]
CHAT = ["--workload", "multi-turn", "--turns", "4", "--system-tokens", "60", "--user-tokens", "20"]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


async def test_run_prints_figures_with_definitions_and_writes_both_files(tmp_path):
    report, records = tmp_path / "deep" / "run.json", tmp_path / "run.jsonl"
    async with serve(WordEngine()) as server:
        code, out, err = await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--num-requests", "40"),
            *("--think-s", "0.01", "--tokenize-url", server.url),
            *("--json", str(report), "--jsonl", str(records), *QUICK, *CHAT),
        )
    assert (code, err) == (0, "")
    for word in ("TTFT", "ITL", "TPOT", "E2E", "P99", "hit rate", "load spread"):
        assert word in out
    assert "TTFT: scheduled arrival -> first non-empty content" in out
    document = read(report)
    summary = document["summary"]
    assert (summary["ok"], summary["errors"]) == (40, 0)
    assert summary["latency_ms"]["ttft"]["p95"] > 0
    assert document["parameters"]["turns"] == 4
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(rows) == 40
    assert {row["outcome"] for row in rows} == {"ok"}
    assert {row["completion_tokens"] for row in rows} <= {3, 4, 5}


async def test_engine_with_one_unlimited_cache_reaches_the_bound(tmp_path):
    report = tmp_path / "run.json"
    async with serve(WordEngine()) as server:
        await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--num-requests", "40"),
            *("--think-s", "0.01", "--tokenize-url", server.url, "--json", str(report)),
            *(*QUICK, *CHAT),
        )
    summary = read(report)["summary"]
    assert summary["hit_rate_bound"] > 0.4
    assert summary["hit_rate"] == summary["hit_rate_bound"]


async def test_cold_run_finds_nothing_that_an_earlier_run_left(tmp_path):
    rates = {}
    async with serve(WordEngine()) as server:
        for cache in ("as-is", "as-is", "cold"):
            report = tmp_path / "run.json"
            await warmgate_load(
                *("run", "--url", server.url, "--model", "m", "--num-requests", "30", "--groups"),
                *("30", "--workload", "shared-prefix", "--prefix-tokens", "64", "--cache", cache),
                *("--json", str(report), *QUICK),
            )
            rates[cache] = read(report)["summary"]["hit_rate"]
    assert rates["as-is"] > 0.9
    assert rates["cold"] < 0.5


async def test_published_trace_is_replayed_scaled_without_an_error(tmp_path):
    report = tmp_path / "run.json"
    async with serve(WordEngine()) as server:
        code, _, _ = await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--workload", "trace"),
            *("--trace", str(EXCERPT), "--trace-scale", "0.01", "--speed-up", "50"),
            *("--json", str(report)),
        )
    summary = read(report)["summary"]
    assert code == 0
    assert (summary["planned"], summary["ok"]) == (300, 300)
    assert summary["hit_rate"] > 0


async def test_errors_are_counted_shown_and_the_exit_code(tmp_path):
    asked = 0

    def sometimes(body: dict[str, Any]) -> Script:
        nonlocal asked
        asked += 1
        if asked % 5 == 0:
            return Script([b'{"error": {"message": "queue is full"}}'], status=503)
        return WordEngine()(body)

    async with serve(sometimes) as server:
        code, out, _ = await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--workload", "shared-prefix"),
            *("--num-requests", "20", "--max-concurrency", "3", *QUICK),
        )
    assert code == 1
    assert "http 503: 4" in out
    assert "queue is full" in out
    assert "inf" in out
    assert "TTFT sent" in out


async def test_target_that_does_not_answer_is_one_line_and_exit_code_2():
    async with serve(lambda body: Script(status=404)) as server:
        code, out, err = await warmgate_load("run", "--url", server.url, "--model", "m")
    assert (code, out) == (2, "")
    assert err.startswith(f"warmgate-load: {server.url}/v1/chat/completions: http 404")


async def test_options_that_exclude_each_other_are_refused():
    for options, word in (
        (["--workload", "trace"], "--trace FILE"),
        (["--session-rate", "1", "--request-rate", "1"], "--session-rate"),
        (["--workload", "trace", "--trace", "/nowhere"], "/nowhere"),
        (["--api-key-env", "WARMGATE_NO_SUCH_KEY"], "WARMGATE_NO_SUCH_KEY"),
    ):
        code, _, err = await warmgate_load("run", "--url", "http://h", "--model", "m", *options)
        assert code == 2
        assert word in err


async def test_compare_sends_the_same_bytes_to_each_and_prints_them_side_by_side(tmp_path):
    path = tmp_path / "compare.json"
    arguments = ("--model", "m", "--num-requests", "16", "--think-s", "0.01", "--cache", "as-is")
    async with serve(WordEngine()) as first, serve(WordEngine()) as second:
        code, out, _ = await warmgate_load(
            *("compare", "--target", f"one={first.url}", "--target", f"two={second.url}"),
            *(*arguments, "--json", str(path), *QUICK, *CHAT),
        )
    assert code == 0
    assert "one" in out
    assert "two" in out
    firsts, seconds = (
        sorted(body["messages"][0]["content"] for body in server.asked if body["max_tokens"] > 1)
        for server in (first, second)
    )
    assert firsts == seconds
    runs = read(path)["runs"]
    assert [run["policy"] for run in runs] == ["one", "two"]
    for run in runs:
        assert set(run["ttft_ms"]) == {"p50", "p90", "p95", "p99"}
        assert run["errors"] == 0
        assert run["hit_rate"] == run["hit_rate_bound"]
        assert run["load_spread"] == 1.0


async def test_repeats_take_turns_and_are_pooled(tmp_path):
    path = tmp_path / "compare.json"
    async with serve(WordEngine()) as first, serve(WordEngine()) as second:
        await warmgate_load(
            *("compare", "--target", f"one={first.url}", "--target", f"two={second.url}"),
            *("--model", "m", "--num-requests", "8", "--think-s", "0.01", "--repeats", "2"),
            *("--json", str(path), *QUICK, *CHAT),
        )
    for run in read(path)["runs"]:
        assert run["summary"]["ok"] == 16
        assert run["hit_rate"] == run["hit_rate_bound"]


async def test_compare_without_contenders_says_so():
    code, _, err = await warmgate_load("compare")
    assert code == 2
    assert "nothing to compare" in err


async def test_interrupted_run_prints_what_it_has():
    process: asyncio.subprocess.Process | None = None

    def interrupt_at_the_tenth(body: dict[str, Any]) -> Script:
        if len(server.asked) == 10 and process is not None:
            process.send_signal(signal.SIGINT)
        return engine(body)

    engine = WordEngine()
    async with serve(interrupt_at_the_tenth) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen.cli", "run", "--url", server.url, "--model", "m"),
            *("--workload", "shared-prefix", "--request-rate", "20", "--num-requests", "1000"),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(50):
            out, _ = await process.communicate()
    assert process.returncode == 130
    assert b"stopped early" in out
    assert b"TTFT" in out
