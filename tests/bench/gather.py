"""Put the figures of several benchmarks into one file: `python -m tests.bench.gather OUT IN...`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def gather(paths: Sequence[Path]) -> dict[str, object]:
    """Each file's content under its name without the extension."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


if __name__ == "__main__":
    target, *sources = map(Path, sys.argv[1:])
    target.write_text(json.dumps(gather(sources), indent=1) + "\n", "utf-8")
