"""The simulator against the real thing: one trace on real sockets and in virtual time.

    python -m tests.bench.simulated [--seconds 40] [--per-second 4]

Real: embedded engines, a gateway and the load test as processes (`warmgate-load compare`). Virtual:
the same rows, fleet, profile and policies in the simulator, where an engine reads a prompt as fast
as this machine's tokenizer was just before. Goals: P50 and P95 of TTFT within 10 %,
hit rate within 2 points.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from loadgen.calibrate import single_token_words
from loadgen.simulate.fleet import Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.patterns import trace
from loadgen.simulate.simulation import Simulation
from loadgen.text import Prose
from workers.engine.profile import load_profile

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build" / "bench-simulated.json"
MODEL_DIR = ROOT / "workers" / "engine" / "model"
PROFILE = "2xh100-32b-llmd"
POLICIES = ("cache-aware", "round-robin")
REPLICAS, NUM_BLOCKS, BLOCK_SIZE = 4, 3000, 16
GROUPS, SHARED_BLOCKS, OWN_BLOCKS, HASH_TOKENS, OUTPUT_TOKENS = 12, 8, 1, 512, 40
MOST_TTFT_OFF, MOST_HIT_OFF = 0.10, 0.02


@dataclass(frozen=True)
class Figures:
    """Milliseconds, and a share."""

    ttft_p50_ms: float
    ttft_p95_ms: float
    hit_rate: float


def write_trace(path: Path, seconds: float, per_second: float) -> None:
    """Prompts that begin in one of twelve ways, at Poisson times, in Mooncake's form."""
    rng, now, own = Random(6), 0.0, GROUPS * SHARED_BLOCKS
    with path.open("w") as file:
        while now < seconds:
            first = SHARED_BLOCKS * rng.randrange(GROUPS)
            ids = [*range(first, first + SHARED_BLOCKS), *range(own, own + OWN_BLOCKS)]
            own += OWN_BLOCKS
            row = {
                "timestamp": round(1e3 * now) + 1,
                "input_length": len(ids) * HASH_TOKENS,
                "output_length": OUTPUT_TOKENS,
                "hash_ids": ids,
            }
            file.write(json.dumps(row) + "\n")
            now += rng.expovariate(per_second)


def real(path: Path, folder: Path, seconds: float) -> dict[str, Figures]:
    """What the load test measured; CalledProcessError if it failed."""
    report = folder / "real.json"
    command = [sys.executable, "-m", "loadgen.cli", "compare"]
    command += [part for policy in POLICIES for part in ("--policy", policy)]
    command += ["--workload", "trace", "--trace", str(path), "--endpoint", "completions"]
    command += ["--tokenizer", str(MODEL_DIR), "--cache", "as-is"]
    command += ["--replicas", str(REPLICAS), "--profile", PROFILE]
    command += ["--num-blocks", str(NUM_BLOCKS), "--block-size", str(BLOCK_SIZE)]
    command += ["--log-dir", str(folder), "--json", str(report)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120 + 4 * seconds)
    runs = json.loads(report.read_text())["runs"]
    return {
        run["policy"]: Figures(run["ttft_ms"]["p50"], run["ttft_ms"]["p95"], run["hit_rate"])
        for run in runs
    }


def reading_s() -> float:
    """Median time that a prompt of the run's length takes to become tokens."""
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    prose = Prose(0, 1.0, single_token_words(MODEL_DIR))
    times = []
    for number in range(20):
        text = prose.passage(f"reading {number}", (SHARED_BLOCKS + OWN_BLOCKS) * HASH_TOKENS)
        start = time.perf_counter()
        tokenizer.encode(text)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def virtual(path: Path, policy: str, reading: float) -> Figures:
    """The same in virtual time."""
    fleet = Fleet(
        profile=load_profile(PROFILE),
        replicas=REPLICAS,
        block_size=BLOCK_SIZE,
        reading_s=reading,
        kv_tokens=(NUM_BLOCKS - 1) * BLOCK_SIZE,
    )
    total = Simulation(fleet, trace(path, 0), policy_maker(policy)).run().total
    return Figures(total.ttft_p50_ms, total.ttft_p95_ms, total.hit_rate)


def is_near(measured: Figures, simulated: Figures) -> bool:
    """Whether the goals are met."""
    ttfts = (
        (measured.ttft_p50_ms, simulated.ttft_p50_ms),
        (measured.ttft_p95_ms, simulated.ttft_p95_ms),
    )
    off = max(abs(ours / theirs - 1.0) for theirs, ours in ttfts)
    return off <= MOST_TTFT_OFF and abs(measured.hit_rate - simulated.hit_rate) <= MOST_HIT_OFF


def main() -> int:
    """0 if simulator and reality agree for every policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--per-second", type=float, default=4.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "trace.jsonl"
        write_trace(path, args.seconds, args.per_second)
        reading = reading_s()
        print(f"to read a prompt takes {1e3 * reading:.1f} ms", flush=True)
        measured = real(path, folder, args.seconds)
        simulated = {policy: virtual(path, policy, reading) for policy in POLICIES}
    rows = []
    for policy in POLICIES:
        here, there = measured[policy], simulated[policy]
        rows.append({"policy": policy, "real": vars(here), "virtual": vars(there)})
        verdict = "met" if is_near(here, there) else "MISSED"
        print(f"{policy}: {verdict} (P50 and P95 TTFT within 10 %, hit rate within 2 points)")
        for figure, value in vars(here).items():
            other = getattr(there, figure)
            print(
                f"  {figure:12} real {value:9.3f}  virtual {other:9.3f}  {other / value - 1:+.1%}"
            )
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(is_near(measured[p], simulated[p]) for p in POLICIES) else 1


if __name__ == "__main__":
    sys.exit(main())
