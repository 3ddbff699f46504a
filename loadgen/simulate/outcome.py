"""What a simulated request experienced, and what a run amounts to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from loadgen.quantiles import percentile


@dataclass(slots=True)
class Served:
    """One request. Times in virtual seconds; `ended` is None while it runs (or if it was lost)."""

    stage: str
    asked: float
    prompt_tokens: int
    output_tokens: int
    session: str | None = None
    tenant: str = ""
    replica: str = ""
    router: int = 0
    predicted_ttft_ms: float | None = None
    predicted_hit_tokens: int = 0
    hit_tokens: int = 0
    first_token: float | None = None
    ended: float | None = None
    tries: int = 0

    @property
    def ttft_ms(self) -> float:
        return (self.first_token - self.asked) * 1e3 if self.first_token is not None else 1e9

    @property
    def tpot_ms(self) -> float | None:
        if self.ended is None or self.first_token is None or self.output_tokens < 2:
            return None
        return (self.ended - self.first_token) * 1e3 / (self.output_tokens - 1)


class Figures(msgspec.Struct, frozen=True):
    """One run, or one stage of it. Shares are 0 to 1; regret is of the mean TTFT."""

    requests: int
    duration_s: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    e2e_p95_ms: float
    hit_rate: float
    output_tokens_per_s: float
    goodput_per_s: float
    """Requests per second whose TTFT and TPOT kept the SLOs."""
    load_max_over_mean: float
    """Uncached tokens of the busiest replica over the mean."""
    prediction_error: float
    """Median of |predicted TTFT - TTFT| / TTFT; 0 where the policy predicts none."""
    regret: float = 0.0
    regret_later: float = 0.0
    """Of the choices made when every replica had answered something."""
    copies: float = 0.0
    """Replicas that hold a block, in the mean over distinct blocks, at the end."""
    most_waiting: int = 0
    bound: float = 0.0
    """Hit rate of one cache of unlimited size."""
    pooled_bound: float = 0.0
    """Hit rate of one cache as large as all replicas' together."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good answer keeps, in milliseconds."""

    ttft_ms: float = 2000.0
    tpot_ms: float = 100.0


@dataclass(slots=True)
class Extras:
    """What only the whole run knows."""

    regret: float = 0.0
    regret_later: float = 0.0
    copies: float = 0.0
    most_waiting: int = 0
    bound: float = 0.0
    pooled_bound: float = 0.0
    names: tuple[str, ...] = field(default=())


def figures(served: Sequence[Served], extras: Extras, slo: Slo) -> Figures:
    """ValueError without requests."""
    if not served:
        raise ValueError("no requests to measure")
    ttfts = sorted(one.ttft_ms for one in served)
    tpots = [tpot for one in served if (tpot := one.tpot_ms) is not None]
    ends = sorted((one.ended - one.asked) * 1e3 for one in served if one.ended is not None)
    last = max((one.ended for one in served if one.ended is not None), default=0.0)
    duration = max(last - min(one.asked for one in served), 1e-9)
    good = sum(one.ttft_ms <= slo.ttft_ms and (one.tpot_ms or 0.0) <= slo.tpot_ms for one in served)
    return Figures(
        requests=len(served),
        duration_s=duration,
        ttft_mean_ms=statistics.fmean(ttfts),
        ttft_p50_ms=percentile(ttfts, 0.5),
        ttft_p90_ms=percentile(ttfts, 0.9),
        ttft_p95_ms=percentile(ttfts, 0.95),
        ttft_p99_ms=percentile(ttfts, 0.99),
        tpot_mean_ms=statistics.fmean(tpots) if tpots else 0.0,
        e2e_p95_ms=percentile(ends, 0.95) if ends else 0.0,
        hit_rate=sum(o.hit_tokens for o in served) / sum(o.prompt_tokens for o in served),
        output_tokens_per_s=sum(o.output_tokens for o in served if o.ended is not None) / duration,
        goodput_per_s=good / duration,
        load_max_over_mean=_spread(served, extras.names),
        prediction_error=_prediction_error(served),
        regret=extras.regret,
        regret_later=extras.regret_later,
        copies=extras.copies,
        most_waiting=extras.most_waiting,
        bound=extras.bound,
        pooled_bound=extras.pooled_bound,
    )


def _spread(served: Sequence[Served], names: Sequence[str]) -> float:
    work = dict.fromkeys(names, 0)
    for one in served:
        work[one.replica] = work.get(one.replica, 0) + one.prompt_tokens - one.hit_tokens
    mean = sum(work.values()) / max(len(work), 1)
    return max(work.values(), default=0) / mean if mean else 1.0


def _prediction_error(served: Sequence[Served]) -> float:
    errors = [
        abs(one.predicted_ttft_ms - one.ttft_ms) / max(one.ttft_ms, 1.0)
        for one in served
        if one.predicted_ttft_ms is not None
    ]
    return statistics.median(errors) if errors else 0.0
