"""What N processes on one port give for their CPU, beside one: each in turn, in one run.

Load and backend need cores too, so requests a second say what this machine has left. What says
how far N processes would go on cores of their own is the CPU that a request takes, of all
processes together: efficiency is that of one process over that of N. One process has a core nearly
for itself; N, load and backend take turns, which costs CPU whoever they are. So two routers that
share nothing, each with half of the load, say what the machine gives at best. It needs wrk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.bench.peers import MODEL_DIR, bodies, tokenize, write_script
from tests.bench.relay import ROOT, Target, free_port, run_wrk, running, wait_for

REPORT = ROOT / "build" / "bench-processes.json"
CASES: dict[str, tuple[int, tuple[str, ...]]] = {
    "1 process": (1, ()),
    "2 routers apart": (2, ()),
    "2 processes, an index each": (1, ("--processes=2", "--set=index.mode=local")),
    "2 processes, one index": (1, ("--processes=2", "--set=index.mode=shared")),
}
"""How many are started, each with these flags."""


@dataclass
class Gateway:
    """One of the cases while it runs."""

    urls: list[str]
    pids: list[int]
    per_second: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    index_us: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)
    errors: int = 0

    def processes(self) -> list[psutil.Process]:
        parents = [psutil.Process(pid) for pid in self.pids]
        return [one for each in parents for one in (each, *each.children(recursive=True))]

    def run(self, lua: str, seconds: int, connections: int) -> None:
        before = {process: _cpu_s(process) for process in self.processes()}
        share = connections // len(self.urls)
        with ThreadPoolExecutor() as pool:
            samples = list(
                pool.map(lambda u: run_wrk(Target("", u, None), lua, seconds, share), self.urls)
            )
        spent = {process: _cpu_s(process) - then for process, then in before.items()}
        per_second = sum(sample.per_second for sample in samples)
        requests = per_second * seconds
        index = sum(s for p, s in spent.items() if "index" in p.cmdline()[:4])
        routers = [
            s for p, s in spent.items() if p.pid not in self.pids and "serve" in p.cmdline()[:4]
        ]
        self.per_second.append(per_second)
        self.cpu_us.append(1e6 * sum(spent.values()) / requests)
        self.index_us.append(1e6 * index / requests)
        self.shares.append([s / sum(routers) for s in routers] if routers else [1.0])
        self.errors += sum(sample.errors for sample in samples)


COUNTING = """
import time
ends, count = time.perf_counter() + 1.0, 0
while time.perf_counter() < ends:
    for _ in range(1000):
        count += 1
print(count)
"""


def side_by_side() -> float:
    """What two loops on two cores do beside each other, of what one alone does: 2 on cores of their
    own, and less where two are threads of one core, whatever the machine says of its cores."""

    def count(loops: int) -> int:
        command = (sys.executable, "-c", COUNTING)
        started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(loops)]
        return sum(int(one.communicate()[0]) for one in started)

    return count(2) / count(1)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def gateways(folder: Path, prompts: list[list[int]]) -> Iterator[dict[str, Gateway]]:
    backends = [free_port(), free_port()]
    events = f"tcp://127.0.0.1:{free_port()}"
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(prompts))
    python = (sys.executable, "-m")
    with contextlib.ExitStack() as stack:
        told = ("--events", events, "--tokens", str(tokens))
        ports = tuple(map(str, backends))
        stack.enter_context(running(*python, "tests.bench.relay_backend", *ports, *told))
        urls = [f"http://127.0.0.1:{port}" for port in backends]
        wait_for(urls[0])
        found = {}
        for name, (count, flags) in CASES.items():
            gateway = found[name] = Gateway([], [])
            for port in (free_port() for _ in range(count)):
                serve = [*python, "router.cli", "serve", f"--port={port}", *flags]
                serve += [f"--tokenizer={MODEL_DIR}"]
                serve += ["--set=tokens.remote=false", "--set=tokens.judge_share=0"]
                serve += [f"--replica=id={u[-5:]},url={u},events={events}" for u in urls]
                gateway.pids.append(stack.enter_context(running(*serve)))
                gateway.urls.append(f"http://127.0.0.1:{port}")
        for gateway in found.values():
            for url in gateway.urls:
                wait_for(url, 60.0)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    args = parser.parse_args()
    prompts = asyncio.run(tokenize([body.encode() for body in bodies(0)]))
    report = {}
    with tempfile.TemporaryDirectory() as made, gateways(Path(made), prompts) as found:
        lua = write_script(Path(made), "json", [len(tokens) for tokens in prompts])
        for gateway in found.values():
            for url in gateway.urls:
                run_wrk(Target("", url, None), lua, 2, args.connections)
        for _ in range(args.rounds):
            for gateway in found.values():
                gateway.run(lua, args.seconds, args.connections)
        alone = statistics.median(found["1 process"].cpu_us)
        apart = found["2 routers apart"]
        best_us, best = statistics.median(apart.cpu_us), statistics.median(apart.per_second)
        print(f"2 KB prompts, JSON replies; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"  two loops beside each other do {side_by_side():.2f} times what one does")
        for name, gateway in found.items():
            cpu_us = statistics.median(gateway.cpu_us)
            report[name] = row = {
                "per_second": statistics.median(gateway.per_second),
                "cpu_us": cpu_us,
                "index_us": statistics.median(gateway.index_us),
                "efficiency": alone / cpu_us,
                "of_two_apart": best_us / cpu_us,
                "per_second_of_two_apart": statistics.median(gateway.per_second) / best,
                "busiest_share": statistics.median(max(shares) for shares in gateway.shares),
                "errors": gateway.errors,
            }
            print(f"  {name}: " + ", ".join(f"{k} {v:.2f}" for k, v in row.items()))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
