"""Where hits were lost, from what routers wrote down of each request (`log.access`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAYS = ("reused", "left", "missed", "new")


@dataclass(frozen=True, slots=True)
class Sums:
    """Of prompt tokens. `reused`: by the engine. `left`: held elsewhere, more than where it went.
    `missed`: expected there, and not reused. `new`: nobody was known to hold them.
    """

    requests: int
    prompt: int
    reused: int
    left: int
    missed: int
    new: int
    reasons: Counter[str]


def records_of(folder: Path) -> list[dict[str, Any]]:
    """All routers', in the order in which requests came."""
    found = []
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            _, is_record, text = line.partition(" router.access ")
            if is_record:
                found.append(json.loads(text))
    return sorted(found, key=lambda record: float(record["started"]))


def sums_of(records: Iterable[dict[str, Any]]) -> Sums:
    """Requests that were not answered, or not tokenized, are left out."""
    told = [one for one in records if one["hit_tokens"] is not None and one["prompt_tokens"]]
    reused = sum(one["hit_tokens"] for one in told)
    predicted = sum(one["predicted_hit_tokens"] for one in told)
    reachable = sum(one["reachable_hit_tokens"] for one in told)
    prompt = sum(one["prompt_tokens"] for one in told)
    reasons = Counter(one["reason"] for one in told)
    kinds = reused, reachable - predicted, predicted - reused, prompt - reachable
    return Sums(len(told), prompt, *kinds, reasons)


def lines_of(
    records: Sequence[dict[str, Any]], phases: Sequence[tuple[str, float, float]]
) -> Iterator[str]:
    """A line for each phase (name, from, until, in seconds since the first request), in % of the
    prompt tokens of all of them."""
    if not records:
        return
    start, total = float(records[0]["started"]), sums_of(records).prompt
    for name, since, until in phases:
        part = [one for one in records if since <= float(one["started"]) - start < until]
        sums = sums_of(part)
        shares = ", ".join(f"{way} {100 * getattr(sums, way) / total:.2f}" for way in WAYS)
        why = ", ".join(f"{reason} {count}" for reason, count in sums.reasons.most_common())
        yield f"    {name:8} {sums.requests:4} requests: {shares} % ({why})"
