"""The load generator: how much one machine can carry, and what others measure at the same time.

usage: python -m tests.bench.loadgen [events] [peers] [workloads] [--json FILE]

`events`: 50,000 SSE events per second, all of them counted at both ends. `peers`: aiperf,
guidellm and `vllm bench serve` against the same embedded engine, one after the other, and every
client's CPU per event against a server that costs nothing. `workloads`: hit rates of all
workloads against their bounds, at 1, 4 and 16 replicas. `make bench-loadgen` sets it up.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
TOKENIZER: Final = ROOT / "workers" / "engine" / "model"
PEERS: Final = Path(os.environ.get("WARMGATE_LOAD_PEERS", ".venv-peers-load")) / "bin"
VLLM: Final = Path(os.environ.get("WARMGATE_VLLM", ".venv-vllm/bin/vllm"))
INPUT, OUTPUT, RATE, REQUESTS = 256, 32, 2, 40
STREAMS, EVENTS = 64, 256


def ours(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loadgen.cli", *arguments]


@contextlib.contextmanager
def process(*command: str) -> Iterator[str]:
    """A server whose first line on stdout says that it listens."""
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def call(command: list[str], folder: Path) -> float:
    """Run it; CPU seconds of it and of all that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = folder / "log.txt"
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=out, cwd=ROOT, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command[0]}: {done.returncode}\n{log.read_text()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- events ------------------------------------------------------------------------------------


STEADY: Final = (7.0, 19.0)
"""Seconds of the run in which as many streams begin as end."""


def events(folder: Path) -> dict[str, Any]:
    """51,300 events per second for 20 s, in two processes; every one of them must arrive."""
    path = folder / "run.json"
    with process("tests.bench.load_server", "20") as port:
        url = f"http://127.0.0.1:{port}"
        workload = "--workload unique --question-tokens 16 --output-tokens 300 --num-requests 3420"
        load = "--request-rate 171 --arrival constant --processes 2 --tokens-per-word 1"
        more = ("--cache", "as-is", "--json", str(path), "--jsonl", str(folder / "run.jsonl"))
        call(
            ours("run", "--url", url, "--model", "m", *workload.split(), *load.split(), *more),
            folder,
        )
        with urllib.request.urlopen(f"{url}/count", timeout=10) as answer:
            written, cpu_s = answer.read().split()
    summary = json.loads(path.read_text())["summary"]
    client = summary["client"]
    with (folder / "run.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    names = ("arrivals_s", "arrival_tokens")
    reads = [one for row in rows for one in zip(*(row[name] for name in names), strict=True)]
    steady = sum(tokens for at, tokens in reads if STEADY[0] <= at < STEADY[1])
    return {
        "events_written": int(written),
        "events_received": sum(tokens for _, tokens in reads),
        "answered": f"{summary['ok']} of {summary['planned']}",
        "events_per_s_when_steady": round(steady / (STEADY[1] - STEADY[0])),
        "cpu_us_per_event": client["cpu_us_per_event"],
        "cpu_cores": client["cpu"],
        "server_cpu_s": float(cpu_s),
        "loop_lag_ms_p99": client["loop_lag_ms_p99"],
        "send_lag_ms_p99": client["send_lag_ms_p99"],
        "is_client_bound": client["is_bound"],
    }


# --- peers -------------------------------------------------------------------------------------


Peer = Callable[[str, int, dict[str, Any], Path], list[str]]
Read = Callable[[Path], dict[str, float]]


def warmgate(url: str, requests: int, load: dict[str, Any], folder: Path) -> list[str]:
    rate = ("--request-rate", str(load.get("rate")), "--arrival", "constant")
    when = rate if "rate" in load else ("--concurrency", str(load["streams"]))
    return ours(
        *("run", "--url", url, "--model", "embedded", "--workload", "unique", "--cache", "as-is"),
        *("--question-tokens", str(load["input"]), "--output-tokens", str(load["output"])),
        *("--num-requests", str(requests), "--tokenizer", str(TOKENIZER), *when),
        *("--extra-body", '{"ignore_eos": true}', "--seed", str(load["seed"])),
        *("--json", str(folder / "ours.json")),
    )


def read_warmgate(folder: Path) -> dict[str, float]:
    latency = json.loads((folder / "ours.json").read_text())["summary"]["latency_ms"]
    names = {"ttft": "ttft", "ttft_sent": "ttft_sent", "itl": "itl", "tpot": "tpot"}
    found = {name: latency[key]["p50"] for name, key in names.items()}
    return {**found, "e2e": latency["e2e"]["p50"]}


def vllm(url: str, requests: int, load: dict[str, Any], folder: Path) -> list[str]:
    rate = ("--request-rate", str(load.get("rate")), "--burstiness", "100000")
    when = rate if "rate" in load else ("--max-concurrency", str(load["streams"]))
    return [
        *(str(VLLM), "bench", "serve", "--backend", "openai-chat", "--base-url", url),
        *("--endpoint", "/v1/chat/completions", "--model", "embedded", "--ignore-eos"),
        *("--tokenizer", str(TOKENIZER), "--dataset-name", "random", "--seed", str(load["seed"])),
        *("--random-input-len", str(load["input"]), "--random-output-len", str(load["output"])),
        *("--num-prompts", str(requests), "--percentile-metrics", "ttft,tpot,itl,e2el", *when),
        *("--metric-percentiles", "50", "--save-result", "--disable-tqdm"),
        *("--result-filename", str(folder / "vllm.json")),
    ]


def read_vllm(folder: Path) -> dict[str, float]:
    found = json.loads((folder / "vllm.json").read_text())
    return {
        "ttft_sent": found["p50_ttft_ms"],
        "itl": found["p50_itl_ms"],
        "tpot": found["p50_tpot_ms"],
        "e2e": found["p50_e2el_ms"],
    }


def aiperf(url: str, requests: int, load: dict[str, Any], folder: Path) -> list[str]:
    rate = ("--request-rate", str(load.get("rate")), "--arrival-pattern", "constant")
    when = rate if "rate" in load else ("--concurrency", str(load["streams"]))
    return [
        *(str(PEERS / "aiperf"), "profile", "--model", "embedded", "--url", url, "--streaming"),
        *("--endpoint-type", "chat", "--tokenizer", str(TOKENIZER), *when, "--ui", "none"),
        *("--isl", str(load["input"]), "--isl-stddev", "0"),
        *("--osl", str(load["output"]), "--osl-stddev", "0", "--random-seed", str(load["seed"])),
        *("--request-count", str(requests), "--extra-inputs", "ignore_eos:true"),
        *("--use-server-token-count", "--artifact-dir", str(folder / "aiperf")),
        *("--no-server-metrics", "--no-gpu-telemetry"),
    ]


def read_aiperf(folder: Path) -> dict[str, float]:
    found = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text())
    return {
        "ttft_sent": found["time_to_first_token"]["p50"],
        "tpot": found["inter_token_latency"]["p50"],
        "e2e": found["request_latency"]["p50"],
    }


def guidellm(url: str, requests: int, load: dict[str, Any], folder: Path) -> list[str]:
    rate = f"kind=constant,rate={load.get('rate')}"
    when = rate if "rate" in load else f"kind=concurrent,streams={load['streams']}"
    data = f"kind=synthetic_text,prompt_tokens={load['input']},output_tokens={load['output']}"
    return [
        *(str(PEERS / "guidellm"), "run", "--backend"),
        *(f"kind=openai_http,target={url},model=embedded", "--profile", when, "--data", data),
        *("--constraint", f"kind=max_requests,count={requests}", "--disable-console"),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--output", f"kind=json,path={folder / 'guidellm.json'}"),
    ]


def read_guidellm(folder: Path) -> dict[str, float]:
    metrics = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]

    def median(name: str) -> float:
        found: float = metrics[name]["successful"]["median"]
        return found

    return {
        "ttft_sent": median("time_to_first_token_ms"),
        "tpot": median("inter_token_latency_ms"),
        "e2e": 1000 * median("request_latency"),
    }


TOOLS: Final[dict[str, tuple[Path, Peer, Read]]] = {
    "warmgate-load": (Path(sys.executable), warmgate, read_warmgate),
    "vllm bench serve": (VLLM, vllm, read_vllm),
    "aiperf": (PEERS / "aiperf", aiperf, read_aiperf),
    "guidellm": (PEERS / "guidellm", guidellm, read_guidellm),
}


def peers(folder: Path) -> dict[str, Any]:
    """The same prompts' lengths at the same rate; then CPU per event of each client."""
    found: dict[str, dict[str, float]] = {}
    there = {name: tool for name, tool in TOOLS.items() if tool[0].exists()}
    load = {"rate": RATE, "input": INPUT, "output": OUTPUT}
    with process("workers.cli", "engine", "--port", "0", "--profile", "laptop", "--num-blocks",
                 "16384", "--events-port", "0", "--replay-port", "0",
                 "--model-name", "embedded") as ready:  # fmt: skip
        url = json.loads(ready)["url"]
        for seed, (name, (_, command, read)) in enumerate(there.items(), 1):
            call(command(url, REQUESTS, load | {"seed": seed}, folder), folder)
            found[name] = read(folder)
    with process("tests.bench.load_server", "20") as port:
        url = f"http://127.0.0.1:{port}"
        for name, (_, command, _) in there.items():
            found[name]["cpu_us_per_event"] = cpu_per_event(command, url, folder)
    return found


def cpu_per_event(command: Peer, url: str, folder: Path) -> float:
    """What more events cost: starting and preparing fall out of the difference."""
    load = {"streams": STREAMS, "input": 16, "output": EVENTS, "seed": 1}
    few, many = STREAMS, 6 * STREAMS
    spent = [call(command(url, n, load, folder), folder) for n in (few, many)]
    return round(1e6 * (spent[1] - spent[0]) / ((many - few) * EVENTS), 1)


# --- workloads ---------------------------------------------------------------------------------

REPLICAS: Final = (1, 4, 16)
SCENARIOS: Final = {
    "multiturn-4": "--num-requests 96 --session-rate 2 --think-s 1",
    "multi-round-qa": "--num-requests 150 --session-rate 1 --think-s 1",
    "redhat-multiturn": "--num-requests 60",
    "sglang-gsp": "--num-requests 160 --groups 10 --request-rate 4 --output-tokens 32",
    "smg-600": "--num-requests 150 --groups 50 --request-rate 4 --output-tokens 32",
    "llmd-73": "--num-requests 200 --groups 10 --request-rate 6 --output-tokens 16",
    "llmd-37": "--num-requests 160 --groups 8 --request-rate 6 --output-tokens 16",
    "tenant-fixed": "--num-requests 120",
    "tenant-timestamp": "--num-requests 120",
    "sglang-21199": "--num-requests 40 --output-tokens 16",
    "agent": "--num-requests 112 --request-rate 8",
    "rag": "--num-requests 120",
    "long-document": "--num-requests 60 --request-rate 3",
    "unique": "--num-requests 60",
    "mooncake": f"--trace {ROOT}/tests/data/traces/mooncake_conversation_300.jsonl"
    " --num-requests 150 --speed-up 4 --trace-scale 0.1",
}


def workloads(folder: Path) -> dict[str, Any]:
    """Hit rate under `cache-aware` and its bound, in points below it."""
    found: dict[str, Any] = {}
    path = folder / "compare.json"
    for name, options in SCENARIOS.items():
        for replicas in REPLICAS:
            call(
                ours(
                    *("compare", "--scenario", name, "--policy", "cache-aware", "--json"),
                    *(str(path), "--replicas", str(replicas), "--profile", "h200-8b-fp8"),
                    *("--num-blocks", "65536", "--log-dir", str(folder), *options.split()),
                ),
                folder,
            )
            (run,) = json.loads(path.read_text())["runs"]
            below = 100 * (run["hit_rate_bound"] - run["hit_rate"])
            found[f"{name}, {replicas}"] = {
                "hit_rate": run["hit_rate"],
                "bound": run["hit_rate_bound"],
                "points_below": round(below, 2),
                "spread": run["load_spread"],
                "errors": run["errors"],
            }
            print(name, replicas, found[f"{name}, {replicas}"], flush=True)
    worst = max(found, key=lambda name: found[name]["points_below"])
    print(f"furthest below its bound: {worst}, {found[worst]['points_below']} points", flush=True)
    return found


PARTS: Final = {"events": events, "peers": peers, "workloads": workloads}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.parts:
            found[name] = PARTS[name](Path(folder))
            print(json.dumps({name: found[name]}, indent=1), flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
