"""Sweeps, searches, replays, pages, processes: the program against scripted servers."""

import asyncio
import csv
import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.loadgen import EXCERPT, Script, WordEngine, plain_answer, serve, warmgate_load

QUICK = ["--request-rate", "100", "--output-tokens", "4", "--tokens-per-word", "1", "--seed", "5"]
SMALL = ["--workload", "shared-prefix", "--prefix-tokens", "60", "--question-tokens", "12"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def prompts(server: Any) -> list[str]:
    return [" ".join(m["content"] for m in body["messages"]) for body in server.asked]


def slow_when_busy(server: Any) -> Any:
    """An engine whose time grows with what is open: 10 ms each."""

    def answer(body: dict[str, Any]) -> Script:
        return Script([0.01 * server[0].open_now ** 2, plain_answer(["a", "b"])])

    return answer


async def test_levels_of_a_sweep_share_no_prompt(tmp_path):
    path, page, table = (tmp_path / name for name in ("s.json", "s.html", "s.csv"))
    async with serve(WordEngine()) as server:
        code, out, err = await warmgate_load(
            *("sweep", "--url", server.url, "--model", "m", "--rates", "50,100"),
            *("--num-requests", "20", "--groups", "4", *SMALL, *QUICK),
            *("--json", str(path), "--html", str(page), "--csv", str(table)),
        )
        sent = prompts(server)
    assert (code, err) == (0, "")
    assert "50/s" in out
    document = read(path)
    assert [level["rate_per_s"] for level in document["levels"]] == [50, 100]
    first, second = {text[:40] for text in sent[:20]}, {text[:40] for text in sent[20:]}
    assert not first & second
    assert page.read_text().startswith("<!doctype html>")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["label"] for row in rows} == {"50/s", "100/s"}


async def test_closed_loop_keeps_that_many_open(tmp_path):
    async with serve(lambda body: Script([0.02, plain_answer(["a"])])) as server:
        code, _, err = await warmgate_load(
            *("sweep", "--url", server.url, "--model", "m", "--concurrencies", "3,6"),
            *("--num-requests", "30", *SMALL, *QUICK, "--json", str(tmp_path / "s.json")),
        )
    assert (code, err) == (0, "")
    assert server.open_most == 6
    assert [level["concurrency"] for level in read(tmp_path / "s.json")["levels"]] == [3, 6]


async def test_search_finds_where_the_slo_breaks(tmp_path):
    known: list[Any] = []
    async with serve(slow_when_busy(known)) as server:
        known.append(server)
        code, out, err = await warmgate_load(
            *("search", "--url", server.url, "--model", "m", "--slo", "p95_ttft_ms=250"),
            *("--min-rate", "2", "--max-rate", "400", "--steps", "4", "--num-requests", "24"),
            *(*SMALL, *QUICK, "--json", str(tmp_path / "s.json")),
        )
    assert (code, err) == (0, "")
    document = read(tmp_path / "s.json")
    assert 2 <= document["best"] < 400
    assert "highest rate that meets the SLOs" in out


async def test_search_that_cannot_even_begin_is_a_missed_slo():
    async with serve(lambda body: Script([0.1, plain_answer(["a"])])) as server:
        code, out, _ = await warmgate_load(
            *("search", "--url", server.url, "--model", "m", "--slo", "p95_ttft_ms=20"),
            *("--num-requests", "4", *SMALL, *QUICK),
        )
    assert code == 3
    assert "not even the lowest" in out


@pytest.mark.parametrize(("limit", "code"), [("10000", 0), ("1", 3)])
async def test_missed_slo_is_the_exit_code(limit, code):
    async with serve(lambda body: Script([0.02, plain_answer(["a"])])) as server:
        found, out, _ = await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--slo", f"p95_ttft_ms={limit}"),
            *("--goodput", f"ttft:{limit}", "--num-requests", "8", *SMALL, *QUICK),
        )
    assert found == code
    assert ("MISSED" in out) is bool(code)
    assert "goodput" in out


async def test_replay_takes_the_file_first_and_its_own_times(tmp_path):
    path = tmp_path / "r.json"
    async with serve(WordEngine()) as server:
        code, _, err = await warmgate_load(
            *("replay", str(EXCERPT), "--url", server.url, "--model", "m", "--trace-scale", "0.01"),
            *("--speed-up", "30", "--max-idle-gap-s", "0.2", "--num-requests", "60"),
            *("--tokens-per-word", "1", "--json", str(path)),
        )
    assert (code, err) == (0, "")
    parameters = read(path)["parameters"]
    assert (parameters["workload"], parameters["format"]) == ("trace", "mooncake")
    assert parameters["max_idle_gap_s"] == 0.2


async def test_scenario_s_keys_are_flags_and_flags_win(tmp_path):
    scenario, path = tmp_path / "mine.yaml", tmp_path / "r.json"
    scenario.write_text(
        "workload: shared-prefix\nprefix_tokens: 40\nquestion-tokens: 10\nnum-requests: 9\n"
        "request-rate: 100\ntokens-per-word: 1\nextra-body: {ignore_eos: true}\n"
        "slo: [error_share=0]\n"
    )
    async with serve(WordEngine()) as server:
        code, _, err = await warmgate_load(
            *("run", "--scenario", str(scenario), "--url", server.url, "--model", "m"),
            *("--num-requests", "5", "--json", str(path)),
        )
        assert all(body["ignore_eos"] is True for body in server.asked)
    assert (code, err) == (0, "")
    document = read(path)
    assert (document["summary"]["ok"], document["parameters"]["prefix_tokens"]) == (5, 40)
    assert document["slos"][0]["is_met"]


async def test_unknown_key_of_a_scenario_is_an_error(tmp_path):
    scenario = tmp_path / "bad.yaml"
    scenario.write_text("request_rat: 3\n")
    code, _, err = await warmgate_load(
        "run", "--scenario", str(scenario), "--url", "http://h", "--model", "m"
    )
    assert code == 2
    assert "--request-rat" in err


async def test_processes_play_each_session_once(tmp_path):
    path, records = tmp_path / "r.json", tmp_path / "r.jsonl"
    async with serve(WordEngine()) as server:
        code, out, err = await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--num-requests", "60", "--processes"),
            *("3", *SMALL, *QUICK, "--json", str(path), "--jsonl", str(records)),
            *("--max-concurrency", "5"),
        )
        sent = prompts(server)
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert sorted(row["number"] for row in rows) == list(range(60))
    assert len(set(sent)) == len(sent) == 60
    assert server.open_most <= 5
    client = read(path)["summary"]["client"]
    assert client["processes"] == 3
    assert client["cpu"] > 0
    # All on one clock: sent in the order in which they were due, give or take the machine.
    due = [row["scheduled_s"] for row in sorted(rows, key=lambda row: row["sent_s"])]
    assert sum(a > b + 0.2 for a, b in itertools.pairwise(due)) == 0
    assert "in 3 processes" in out


async def test_warm_cache_is_primed_with_this_run_s_own_prompts(tmp_path):
    path = tmp_path / "r.json"
    async with serve(WordEngine()) as server:
        await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--num-requests", "20", "--groups"),
            *("20", "--cache", "warm", *SMALL, *QUICK, "--json", str(path)),
        )
    assert len(server.asked) == 40
    assert {body["max_tokens"] for body in server.asked[:20]} == {1}
    assert read(path)["summary"]["hit_rate"] > 0.8


async def test_sub_agents_run_before_the_turn_that_needs_them(tmp_path):
    async with serve(WordEngine()) as server:
        code, _, err = await warmgate_load(
            *("run", "--url", server.url, "--model", "m", "--workload", "agent"),
            *("--num-requests", "14", "--tools-tokens", "30", "--context-tokens", "20"),
            *("--think-s", "0", *QUICK, "--jsonl", str(tmp_path / "r.jsonl")),
        )
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    ends = [row["end_s"] for row in rows if "." in row["session"]]
    (joined,) = [row for row in rows if row["session"] == "a0" and row["turn"] == 4]
    assert len(ends) == 6
    assert joined["scheduled_s"] >= max(ends)


async def test_report_gives_the_same_figures_again_and_compares_files(tmp_path):
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    path, again = tmp_path / "r.json", tmp_path / "again.json"
    async with serve(WordEngine()) as server:
        for file, wish in ((first, path), (second, tmp_path / "x.json")):
            await warmgate_load(
                *("run", "--url", server.url, "--model", "m", "--num-requests", "20", *SMALL),
                *(*QUICK, "--jsonl", str(file), "--json", str(wish)),
            )
    code, out, err = await warmgate_load("report", str(first), str(second), "--json", str(again))
    assert (code, err) == (0, "")
    assert "two against one: P95 TTFT" in out
    latencies = [read(file)["summary"]["latency_ms"] for file in (path, again)]
    assert latencies[0] == latencies[1]


async def test_every_document_has_a_schema():
    for name in ("run", "compare", "sweep", "record"):
        code, out, _ = await warmgate_load("report", "--schema", name)
        assert code == 0
        assert "$ref" in json.loads(out)


async def test_workloads_are_listed_with_what_they_take():
    _, out, _ = await warmgate_load("workloads")
    for name in ("agent", "rag", "hot-prefix", "timestamp-in-front", "llmd-73"):
        assert name in out
    _, out, _ = await warmgate_load("workloads", "rag")
    assert "--retrieved" in out


async def written_page(folder: Path) -> Path:
    page = folder / "page.html"
    async with serve(WordEngine()) as first, serve(WordEngine()) as second:
        code, out, err = await warmgate_load(
            *("compare", "--target", f"<b>one={first.url}", "--target", f"two={second.url}"),
            *("--model", "m", "--num-requests", "24", "--think-s", "0.01", "--turns", "4"),
            *("--system-tokens", "60", "--html", str(page), *QUICK),
        )
    assert (code, err) == (0, ""), out
    return page


async def test_page_needs_nothing_from_anywhere_and_escapes_names(tmp_path):
    text = (await written_page(tmp_path)).read_text()
    assert "<b>one" not in text
    assert "&lt;b&gt;one" in text
    for word in ("<script", "src=", "url(", "@import", "<link"):
        assert word not in text


def browse(command: list[str]) -> bytes:
    return subprocess.run(command, capture_output=True, timeout=50, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium (apt-get install chromium)")
async def test_page_is_drawn_by_a_real_browser(tmp_path):
    page = await written_page(tmp_path)
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,2400"),
    ]
    shot = tmp_path / "page.png"
    await asyncio.to_thread(browse, [*command, f"--screenshot={shot}", page.as_uri()])
    dom = (await asyncio.to_thread(browse, [*command, "--dump-dom", page.as_uri()])).decode()
    assert dom.count("<svg") >= 5
    assert "Hit rate by turn" in dom
    assert shot.stat().st_size > 20_000
