"""How fast replies are relayed, against a direct connection and against nginx.

    python -m tests.bench.relay [--rounds 5] [--seconds 3] [--connections 32]
    python -m tests.bench.relay --target http://127.0.0.1:8000 --backend-port 18001 --pid PID

All targets are asked in turn, round by round, and each ratio is taken inside one round: figures of
one machine at different times can't be compared. CPU time per request is steadier than throughput
where other work shares the machine. With `--target`, a running gateway (whose only replica is
http://127.0.0.1:BACKEND_PORT) takes the place of the bare Forwarder; `--pid` is for its CPU time.
"""

import argparse
import contextlib
import json
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "bench-relay.json"
PROMPT = "hello world " * 160
CASES = {"json": 0, "stream-50": 50, "stream-500": 500}

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_buffer_size 64k;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{ server 127.0.0.1:{backend}; keepalive 256; keepalive_requests 10000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048; keepalive_requests 10000000;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Target:
    name: str
    url: str
    pid: int | None


@dataclass(frozen=True)
class Sample:
    """One run of wrk. `cpu_us`: of the target's process, per request, user and system."""

    per_second: float
    cpu_us: float | None
    errors: int
    p50_ms: float
    p99_ms: float


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(url: str, timeout_s: float = 10.0) -> None:
    parts = urlsplit(url)
    deadline = time.monotonic() + timeout_s
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((parts.hostname, parts.port), 1),
        ):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing listens at {url}")
        time.sleep(0.05)


@contextlib.contextmanager
def running(*command: str) -> Iterator[int]:
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)


def script(folder: Path, case: str) -> str:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    if CASES[case]:
        body |= {"stream": True, "max_tokens": CASES[case]}
    path = folder / f"{case}.lua"
    text = json.dumps(body, separators=(",", ":"))
    path.write_text(
        'wrk.method="POST"\nwrk.headers["Content-Type"]="application/json"\n'
        f'wrk.headers["Authorization"]="Bearer key"\nwrk.body=[[{text}]]\n'
    )
    return str(path)


def cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def run_wrk(target: Target, lua: str, seconds: int, connections: int) -> Sample:
    before = cpu_s(target.pid)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", lua]
    command.append("--latency")
    out = subprocess.run(
        [*command, f"{target.url}/v1/chat/completions"], capture_output=True, text=True, check=True
    ).stdout
    spent = cpu_s(target.pid) - before
    requests = int(found(r"(\d+) requests in", out) or 0)
    refused = int(found(r"Non-2xx or 3xx responses: (\d+)", out) or 0)
    sockets = re.search(r"connect (\d+), read (\d+), write (\d+), timeout (\d+)", out)
    errors = refused + sum(map(int, sockets.groups())) if sockets else refused
    per_second = float(found(r"Requests/sec: +([\d.]+)", out) or 0)
    cpu_us = 1e6 * spent / max(requests, 1) if target.pid else None
    return Sample(per_second, cpu_us, errors, percentile_ms(50, out), percentile_ms(99, out))


def percentile_ms(percent: int, out: str) -> float:
    match = re.search(rf"{percent}%\s+([\d.]+)(us|ms|s)\b", out)
    return float(match[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[match[2]] if match else 0.0


def found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None


@contextlib.contextmanager
def targets(arguments: argparse.Namespace, folder: Path) -> Iterator[list[Target]]:
    backend, nginx, own = arguments.backend_port or free_port(), free_port(), free_port()
    python = (sys.executable, "-m")
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, backend=backend, port=nginx))
    direct = f"http://127.0.0.1:{backend}"
    with contextlib.ExitStack() as stack:
        backend_pid = stack.enter_context(
            running(*python, "tests.bench.relay_backend", str(backend))
        )
        nginx_pid = stack.enter_context(
            running("nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"))
        )
        url, pid = arguments.target, arguments.pid
        if url is None:
            url = f"http://127.0.0.1:{own}"
            pid = stack.enter_context(
                running(*python, "tests.bench.relay_gateway", str(own), direct)
            )
        found_targets = [
            Target("direct", direct, backend_pid),
            Target("nginx", f"http://127.0.0.1:{nginx}", nginx_pid),
            Target("warmgate", url, pid),
        ]
        for target in found_targets:
            wait_for(target.url)
        yield found_targets


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[Sample]]]:
    samples: dict[str, dict[str, list[Sample]]] = {case: {} for case in CASES}
    with targets(arguments, folder) as all_targets:
        scripts = {case: script(folder, case) for case in CASES}
        for target in all_targets:
            run_wrk(target, scripts["json"], 1, arguments.connections)
        for _ in range(arguments.rounds):
            for case, lua in scripts.items():
                for target in all_targets:
                    sample = run_wrk(target, lua, arguments.seconds, arguments.connections)
                    samples[case].setdefault(target.name, []).append(sample)
    return samples


def ratio(ours: list[Sample], theirs: list[Sample]) -> float:
    """Median over rounds of the ratio inside a round."""
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(a.per_second / b.per_second for a, b in pairs)


def summary(samples: dict[str, dict[str, list[Sample]]]) -> dict[str, dict[str, float | None]]:
    rows: dict[str, dict[str, float | None]] = {}
    for case, by_target in samples.items():
        row: dict[str, float | None] = {
            "vs_direct": ratio(by_target["warmgate"], by_target["direct"]),
            "vs_nginx": ratio(by_target["warmgate"], by_target["nginx"]),
        }
        for name, runs in by_target.items():
            rate = statistics.median(run.per_second for run in runs)
            row[f"{name}_requests_per_s"] = rate
            row[f"{name}_events_per_s"] = rate * CASES[case] if CASES[case] else None
            spent = [run.cpu_us for run in runs if run.cpu_us is not None]
            row[f"{name}_cpu_us"] = statistics.median(spent) if spent else None
            row[f"{name}_errors"] = sum(run.errors for run in runs)
        rows[case] = row
    return rows


def show(rows: dict[str, dict[str, float | None]]) -> None:
    columns = "case", "target", "requests/s", "events/s", "cpu us/request", "cpu us/event", "errors"
    print(" ".join(f"{column:>14}" for column in columns))
    for case, row in rows.items():
        for name in ("direct", "nginx", "warmgate"):
            cpu = row[f"{name}_cpu_us"]
            per_event = cpu / CASES[case] if cpu is not None and CASES[case] else None
            values = (
                row[f"{name}_requests_per_s"],
                row[f"{name}_events_per_s"],
                cpu,
                per_event,
                row[f"{name}_errors"],
            )
            cells = [f"{'-' if value is None else format(value, '.1f'):>14}" for value in values]
            print(f"{case:>14} {name:>14} " + " ".join(cells))
        print(
            f"{case:>14} warmgate is {row['vs_direct']:.2f} of direct, "
            f"{row['vs_nginx']:.2f} of nginx"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--target", help="a running gateway's URL")
    parser.add_argument("--backend-port", type=int, help="where its replica is to listen")
    parser.add_argument("--pid", type=int, help="its process, for CPU time")
    arguments = parser.parse_args()
    missing = [name for name in ("nginx", "wrk") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"not found: {', '.join(missing)}. Try: apt-get install -y nginx wrk")
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(arguments, Path(folder))
    rows = summary(samples)
    show(rows)
    runs = {
        case: {name: [asdict(run) for run in runs] for name, runs in by_target.items()}
        for case, by_target in samples.items()
    }
    REPORT.parent.mkdir(exist_ok=True)
    report = {
        "connections": arguments.connections,
        "seconds": arguments.seconds,
        "summary": rows,
        "runs": runs,
    }
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
