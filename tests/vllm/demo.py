"""The load generator's comparison of three policies, over two real vLLM replicas.

usage: python -m tests.vllm.demo [--json FILE]

`make demo-vllm` sets it up and runs it; WARMGATE_VLLM and WARMGATE_VLLM_MODEL name what it needs.
"""

import argparse
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.vllm import stack
from tests.vllm.stack import BLOCK_SIZE, MODEL_NAME

POLICIES: Final = ("round-robin", "session", "cache-aware")
# A core computes 550 prompt tokens per second: lengths and rates that keep two of them busy.
WORKLOAD: Final = (
    "--workload multi-turn --num-requests 60 --turns 5 --session-rate 0.4 --system-tokens 500"
    " --user-tokens 40 --output-tokens 24 --think-s 2 --seed 7"
).split()


def main() -> int:
    parser = argparse.ArgumentParser(description="three policies over two real vLLM replicas")
    parser.add_argument("--json", type=Path, default=Path("build/demo-vllm.json"), metavar="FILE")
    parser.add_argument("--html", type=Path, default=Path("build/demo-vllm.html"), metavar="FILE")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    args = parser.parse_args()
    at = stack.installed()
    if at is None:
        sys.stderr.write("no real vLLM here: `make demo-vllm` sets it up\n")
        return 2
    args.json.parent.mkdir(parents=True, exist_ok=True)
    with stack.replicas(at) as pair, ExitStack() as routers:
        targets = [
            f"{policy}={routers.enter_context(stack.router(at, pair, policy))}"
            for policy in POLICIES
        ]
        command = [
            *(sys.executable, "-m", "loadgen.cli", "compare", "--model", MODEL_NAME),
            *(word for target in targets for word in ("--target", target)),
            *("--block-size", str(BLOCK_SIZE), "--json", str(args.json)),
            *("--html", str(args.html), "--repeats", str(args.repeats)),
            *(word for one in pair for word in ("--metrics-url", one.url)),
            *WORKLOAD,
        ]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
