"""What conversations notice when the fleet grows, shrinks and loses a replica, in virtual time.

    python -m tests.bench.scaling [--policy cache-aware] [--seed 0]

Ends with 1 if a goal of `loadgen.simulate.scaling` is missed.
"""

import argparse
import sys

from rich.console import Console

from loadgen.simulate.scaling import scaled, table_of
from router.routing import POLICIES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=sorted(POLICIES), default="cache-aware")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    verdicts = scaled(args.policy, args.seed)
    Console(width=150).print(table_of(args.policy, verdicts))
    return 0 if all(one.is_met for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
