"""A prefix whose traffic rises and falls: how many replicas hold it, and what others hit meanwhile.

python -m tests.bench.copies [--policy cache-aware] [--seeds 3]
"""

import argparse

from rich.console import Console

from loadgen.simulate.copies import Tide, levels, table_of
from router.routing import POLICIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=sorted(POLICIES), default="cache-aware")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for seed in range(args.seeds):
        found = levels(Tide(), args.policy, seed)
        Console(width=120).print(table_of(f"{args.policy}, seed {seed}", found))


if __name__ == "__main__":
    main()
