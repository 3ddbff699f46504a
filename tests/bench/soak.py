"""Streams for minutes, with deaths and departures: `make soak-streams`.

    python -m tests.bench.soak [--streams 500] [--minutes 10]

Exits with 1 if a stream lied, or if memory grew by more than 5 % after the warm-up.
"""

import argparse
import asyncio
import json
import sys

from tests.bench.relay import ROOT
from tests.support.soak import Findings, Mix, soak

REPORT = ROOT / "build" / "soak-streams.json"
MOST_GROWTH = 0.05


def show(found: Findings) -> None:
    for end, count in found.ends.most_common():
        print(f"{count:>8}  {end}")
    for each in found.wrong[:20]:
        print(f"WRONG: {each}")
    first, last = found.rss[0][1], found.rss[-1][1]
    print(f"memory: {first / 2**20:.1f} MiB at the start, {last / 2**20:.1f} MiB at the end")
    print(f"growth after the warm-up: {100 * found.growth:.1f} %")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    mix = Mix(pause_s=0.4)
    found = asyncio.run(soak(arguments.streams, 60 * arguments.minutes, mix, arguments.seed))
    show(found)
    REPORT.parent.mkdir(exist_ok=True)
    report = {"ends": found.ends, "wrong": found.wrong, "growth": found.growth, "rss": found.rss}
    REPORT.write_text(json.dumps(report) + "\n")
    return 1 if found.wrong or found.growth > MOST_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
