"""How soon probes and metrics answer while the gateway is as busy as it can be.

    python -m tests.bench.probes [--seconds 20] [--streams 64]

The load is made by other processes; the probes are asked one after another on new connections,
as an orchestrator does. Exits with 1 if their 99th percentile is above 100 ms.
"""

import argparse
import asyncio
import sys

import psutil

from tests.support.faults import bed, works
from tests.support.load import MOST_MS, ask_probes, hammered, quantile


async def measure(seconds: float, streams: int) -> dict[str, list[float]]:
    """Milliseconds by path, and on stderr how busy the router was."""
    async with bed(works, settings=("listen.admin_port=0",), is_ready=False) as run:
        router = psutil.Process(run.router.process.pid)
        async with hammered(run, streams):
            router.cpu_percent()
            took = await asyncio.to_thread(ask_probes, run.router.ready["admin_url"], seconds)
            print(f"the router took {router.cpu_percent():.0f} % of a core", file=sys.stderr)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=64)
    arguments = parser.parse_args()
    took = asyncio.run(measure(arguments.seconds, arguments.streams))
    for path, times in took.items():
        p50, p99 = quantile(times, 0.5), quantile(times, 0.99)
        print(f"{path:10} {len(times):>6} asked, p50 {p50:6.2f} ms, p99 {p99:6.2f} ms")
    return int(any(quantile(times, 0.99) > MOST_MS for times in took.values()))


if __name__ == "__main__":
    sys.exit(main())
