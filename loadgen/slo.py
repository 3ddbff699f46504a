"""Limits: which requests were good (goodput), and whether a run was (SLO)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from loadgen.record import Record

if TYPE_CHECKING:
    from loadgen.summary import Summary

PER_REQUEST: Final[Mapping[str, Callable[[Record], float | None]]] = {
    "ttft": lambda r: r.ttft_s,
    "tpot": lambda r: r.tpot_s,
    "e2el": lambda r: r.e2e_s,
}
ALIASES: Final = {"e2e": "e2el"}
LATENCY: Final = re.compile(r"(mean|p50|p90|p95|p99|max)_(ttft|ttft_sent|itl|tpot|e2e|e2e_sent)_ms")
AT_MOST: Final = ("error_share",)
AT_LEAST: Final = ("hit_rate", "goodput_share", "output_tokens_per_s", "requests_per_s")


class Goodput(msgspec.Struct, frozen=True):
    """`share` is of all that were planned, not only of the answered ones. `met`: limit → share.

    A request without the metric (an answer of one token has no TPOT) meets that limit; a failed
    one meets none.
    """

    limits_ms: dict[str, float]
    good: int
    share: float
    per_s: float
    met: dict[str, float]


class Verdict(msgspec.Struct, frozen=True):
    """One SLO: what was wished, what was found. `found` None: there was nothing to measure."""

    name: str
    limit: float
    found: float | str | None
    is_met: bool


def parse_goodput(text: str) -> tuple[str, float]:
    """`ttft:200` → ("ttft", 200 ms). ValueError with what is allowed."""
    name, colon, value = text.partition(":")
    name = ALIASES.get(name, name)
    if not colon or name not in PER_REQUEST:
        raise ValueError(f"{text!r} is none of {', '.join(f'{n}:MS' for n in PER_REQUEST)}")
    return name, _positive(value, text)


def parse_slo(text: str) -> tuple[str, float]:
    """`p95_ttft_ms=250` → ("p95_ttft_ms", 250). ValueError with what is allowed."""
    name, equals, value = text.partition("=")
    if not equals or not (LATENCY.fullmatch(name) or name in (*AT_MOST, *AT_LEAST)):
        known = ", ".join(f"{n}=N" for n in ("p95_ttft_ms", *AT_MOST, *AT_LEAST))
        raise ValueError(f"{text!r} is none of {known} (mean, p50 … max; ttft, itl, tpot, e2e)")
    return name, _positive(value, text, or_zero=True)


def goodput(
    records: Sequence[Record], planned: int, duration_s: float, limits_ms: Mapping[str, float]
) -> Goodput | None:
    """None without limits."""
    if not limits_ms:
        return None

    def meets(record: Record, name: str) -> bool:
        value = PER_REQUEST[name](record)
        return record.is_ok and (value is None or 1e3 * value <= limits_ms[name])

    good = sum(all(meets(record, name) for name in limits_ms) for record in records)
    whole = planned or 1
    return Goodput(
        limits_ms=dict(limits_ms),
        good=good,
        share=round(good / whole, 5),
        per_s=round(good / duration_s, 3) if duration_s else 0.0,
        met={n: round(sum(meets(r, n) for r in records) / whole, 5) for n in limits_ms},
    )


def judge(summary: Summary, slos: Mapping[str, float]) -> list[Verdict]:
    """Latency SLOs of TTFT and E2E count failures as infinite."""
    return [_judge(summary, name, limit) for name, limit in slos.items()]


def _judge(summary: Summary, name: str, limit: float) -> Verdict:
    found = _found(summary, name)
    if found is None:
        return Verdict(name, limit, None, False)
    is_met = found >= limit if name in AT_LEAST else found <= limit
    return Verdict(name, limit, found if math.isfinite(found) else "inf", is_met)


def _found(summary: Summary, name: str) -> float | None:
    if name == "error_share":
        lost = summary.planned - summary.ok
        return lost / summary.planned if summary.planned else None
    if name == "goodput_share":
        return None if summary.goodput is None else summary.goodput.share
    if name in AT_LEAST:
        value: float | None = getattr(summary, name)
        return value
    rank, metric = name.removesuffix("_ms").split("_", 1)
    metric = f"{metric}_failed_inf" if metric in ("ttft", "e2e") else metric
    found = getattr(getattr(summary.latency_ms, metric), rank)
    return None if found is None else float(found)


def _positive(text: str, whole: str, or_zero: bool = False) -> float:
    value = float(text)
    if not (value >= 0 if or_zero else value > 0):
        raise ValueError(f"{whole!r}: the limit must be a positive number")
    return value
