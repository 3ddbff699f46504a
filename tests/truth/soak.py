"""`python -m tests.truth.soak [SECONDS [SEED]]`: the truth test for as long as one likes."""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.truth import trial

RESULT = Path("build/soak-index.json")
RIGHT_AT_LEAST = 0.995


async def soak(seconds: float, seed: int) -> dict[str, Any]:
    """The run's findings, as they are written down."""
    async with trial(seed) as run:
        findings = await run.run(seconds)
        counters = {each.name: asdict(each.watched.counters) for each in run.subjects}
    report = {"seed": seed, "seconds": seconds, **asdict(findings), "events": counters}
    report["right_share"] = round(findings.right_share, 5)
    return report


def main(seconds: float, seed: int) -> int:
    report = asyncio.run(soak(seconds, seed))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    is_good = not report["lies"] and not report["late"]
    return 0 if is_good and report["right_share"] >= RIGHT_AT_LEAST else 1


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    raise SystemExit(main(seconds, seed))
