"""The gateway beside nginx and the Rust routers, all in front of the same backend, in one run.

    make bench-peers        (python -m tests.bench.peers [--rounds 5] [--seconds 3] …)

The backend publishes KV events for every prompt of the load, so that the gateway does all that
`cache-aware` does: tokens, hash, match, rank. The others run their own cache-aware policy. Targets
are asked in turn, round by round; each ratio is taken inside one round. `latency` is from a single
connection, so that nothing queues: what a target adds is its figure less that of `direct`.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from router.openai.generation import parse_generation
from router.tokens import LocalTokenizer
from tests.bench.relay import (
    CASES,
    NGINX,
    ROOT,
    Sample,
    Target,
    free_port,
    ratio,
    run_wrk,
    running,
    wait_for,
)

REPORT = ROOT / "build" / "bench-peers.json"
MODEL_DIR = ROOT / "workers" / "engine" / "model"
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PEERS = {
    "vllm-router": "vllm_router.launch_router",
    "smg": "smg.launch_router",
    "sglang-router": "sglang_router.launch_router",
}
PROMPTS = 32
PATH = "/v1/chat/completions"
WORDS = "harbour valley feather window market ladder bridge candle mirror river".split()


def prompt(number: int) -> str:
    """About 2 KB of text; no two begin alike."""
    words = (WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(280))
    return f"{number} " + " ".join(words)


def bodies(events: int, counts: Sequence[int] = (0,) * PROMPTS) -> list[str]:
    """`counts`: tokens of each prompt, for the backend to report."""
    rows = []
    for number in range(PROMPTS):
        body: dict[str, object] = {
            "model": "m",
            "messages": [{"role": "user", "content": prompt(number)}],
        }
        body["seed"] = counts[number]
        if events:
            body |= {"stream": True, "max_tokens": events}
        rows.append(json.dumps(body, separators=(",", ":")))
    return rows


def write_script(folder: Path, case: str, counts: Sequence[int]) -> str:
    table = ",".join(f"[[{body}]]" for body in bodies(CASES[case], counts))
    path = folder / f"{case}.lua"
    path.write_text(
        'wrk.method="POST"\nwrk.headers["Content-Type"]="application/json"\n'
        f'wrk.headers["Authorization"]="Bearer key"\nlocal bodies={{{table}}}\n'
        "local made, at = {}, 0\n"
        f'init=function() for i,b in ipairs(bodies) do made[i]=wrk.format(nil,"{PATH}",nil,b) end '
        "end\nrequest=function() at = at % #made + 1; return made[at] end\n"
    )
    return str(path)


async def tokenize(bodies: Sequence[bytes]) -> list[list[int]]:
    tokenizer = LocalTokenizer.load(MODEL_DIR)
    rows = []
    for body in bodies:
        ids = array("I", await tokenizer.tokenize(parse_generation(PATH, {}, body)))
        rows.append(list(ids))
    return rows


@contextlib.contextmanager
def targets(folder: Path, prompts: list[list[int]]) -> Iterator[list[Target]]:
    backends = [free_port(), free_port()]
    events = f"tcp://127.0.0.1:{free_port()}"
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(prompts))
    urls = [f"http://127.0.0.1:{port}" for port in backends]
    python = (sys.executable, "-m")
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        ports = tuple(map(str, backends))
        told = ("--events", events, "--tokens", str(tokens))
        pid = start(running(*python, "tests.bench.relay_backend", *ports, *told))
        wait_for(urls[0])
        found = [Target("direct", urls[0], pid)]
        port = free_port()
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, backend=backends[0], port=port))
        pid = start(running("nginx", "-p", str(folder), "-c", str(config)))
        found.append(Target("nginx", f"http://127.0.0.1:{port}", pid))
        port = free_port()
        replicas = [f"--replica=id={u[-5:]},url={u},events={events}" for u in urls]
        serve: tuple[str, ...] = (
            *python,
            "router.cli",
            "serve",
            f"--port={port}",
            f"--tokenizer={MODEL_DIR}",
        )
        # the backend's /tokenize is a stub: nothing may be compared with it
        serve += ("--set=tokens.remote=false", "--set=tokens.judge_share=0")
        pid = start(running(*serve, *replicas))
        found.append(Target("warmgate", f"http://127.0.0.1:{port}", pid))
        for name, module in PEERS.items():
            found.append(start(peer(name, module, urls, folder)))
        for target in found:
            wait_for(target.url, 60.0)
        yield found


@contextlib.contextmanager
def peer(name: str, module: str, urls: list[str], folder: Path) -> Iterator[Target]:
    port = free_port()
    flags = ["--host=127.0.0.1", f"--port={port}", "--policy=cache_aware", "--log-level=error"]
    flags += [f"--prometheus-port={free_port()}", "--worker-urls", *urls]
    if name != "smg":
        flags.append("--max-concurrent-requests=4096")
    with running(str(PEERS_PYTHON), "-m", module, *flags) as pid:
        yield Target(name, f"http://127.0.0.1:{port}", pid)


Samples = dict[str, dict[str, list[Sample]]]


def measure(arguments: argparse.Namespace, folder: Path) -> Samples:
    samples: Samples = {case: {} for case in (*CASES, "latency")}
    prompts = asyncio.run(tokenize([body.encode() for body in bodies(0)]))
    counts = [len(tokens) for tokens in prompts]
    with targets(folder, prompts) as found:
        scripts = {case: write_script(folder, case, counts) for case in CASES}
        for target in found:
            warm = run_wrk(target, scripts["json"], 3, arguments.connections)
            print(f"warm-up {target.name}: {warm}", flush=True)
        for _ in range(arguments.rounds):
            for case, lua in scripts.items():
                for target in found:
                    sample = run_wrk(target, lua, arguments.seconds, arguments.connections)
                    samples[case].setdefault(target.name, []).append(sample)
            for target in found:
                sample = run_wrk(target, scripts["json"], arguments.seconds, 1)
                samples["latency"].setdefault(target.name, []).append(sample)
    return samples


def middle(runs: list[Sample], field: str) -> float:
    return statistics.median(getattr(run, field) or 0.0 for run in runs)


def show(samples: Samples) -> dict[str, dict[str, dict[str, float]]]:
    """Print one table per case; returns its numbers."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for case, by_target in samples.items():
        rows[case] = {}
        events = CASES.get(case, 0)
        print(f"\n{case}{f': {events} events a request' if events else ''}")
        print(f"{'':>14} requests/s  events/s  cpu us/req  cpu us/event  added p50 / p99 ms"
              "  per s vs nginx, cpu vs nginx  errors")  # fmt: skip
        direct = by_target["direct"]
        for name, runs in by_target.items():
            row = {
                "requests_per_s": middle(runs, "per_second"),
                "events_per_s": events * middle(runs, "per_second"),
                "cpu_us": middle(runs, "cpu_us"),
                "cpu_us_per_event": middle(runs, "cpu_us") / events if events else 0.0,
                "added_p50_ms": middle(runs, "p50_ms") - middle(direct, "p50_ms"),
                "added_p99_ms": middle(runs, "p99_ms") - middle(direct, "p99_ms"),
                "per_s_vs_nginx": ratio(runs, by_target["nginx"]),
                "cpu_vs_nginx": middle(runs, "cpu_us") / middle(by_target["nginx"], "cpu_us"),
                "errors": float(sum(run.errors for run in runs)),
            }
            rows[case][name] = row
            print(
                f"{name:>14} {row['requests_per_s']:10.0f} {row['events_per_s']:9.0f} "
                f"{row['cpu_us']:11.1f} {row['cpu_us_per_event']:13.2f} "
                f"{row['added_p50_ms']:11.3f} / {row['added_p99_ms']:.3f}"
                f"  {row['per_s_vs_nginx']:11.2f} {row['cpu_vs_nginx']:10.2f} "
                f"{row['errors']:13.0f}"
            )
    return rows


def conclude(samples: Samples) -> dict[str, float]:
    """The ratios that the project holds itself to."""

    def best(case: str) -> str:
        return max(PEERS, key=lambda name: middle(samples[case][name], "per_second"))

    def versus(case: str, name: str) -> float:
        return ratio(samples[case]["warmgate"], samples[case][name])

    def cpu(case: str, name: str) -> float:
        ours, theirs = samples[case]["warmgate"], samples[case][name]
        return middle(theirs, "cpu_us") / middle(ours, "cpu_us")

    short, small = best("stream-50"), best("json")
    return {
        "500-event streams: events/s of nginx": versus("stream-500", "nginx"),
        "500-event streams: CPU per event of nginx": 1 / cpu("stream-500", "nginx"),
        f"50-event streams: of {short}, per second": versus("stream-50", short),
        f"50-event streams: of {short}, per CPU second": cpu("stream-50", short),
        f"JSON: of {small}, per second": versus("json", small),
        f"JSON: of {small}, per CPU second": cpu("json", small),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    arguments = parser.parse_args()
    missing = [name for name in ("nginx", "wrk") if shutil.which(name) is None]
    if missing or not PEERS_PYTHON.exists():
        raise SystemExit("run `make bench-peers`, which installs nginx, wrk and the other routers")
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(arguments, Path(folder))
    rows = show(samples)
    print()
    conclusions = conclude(samples)
    for words, figure in conclusions.items():
        print(f"{words}: {figure:.2f}")
    REPORT.parent.mkdir(exist_ok=True)
    runs = {c: {n: [asdict(r) for r in rs] for n, rs in by.items()} for c, by in samples.items()}
    report = {"conclusions": conclusions, "summary": rows, "runs": runs}
    REPORT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
