"""From records to the figures of a report. Definitions: report.DEFINITIONS."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from loadgen.engines import EngineCounters
from loadgen.health import ClientHealth, client_health
from loadgen.quantiles import Quantiles, quantiles
from loadgen.record import Record
from loadgen.runner import RunResult
from loadgen.slo import Goodput, goodput


class ReplicaShare(msgspec.Struct, frozen=True):
    """What one replica answered; `uncached_tokens` is the prefill work, as the engine counted."""

    id: str
    requests: int
    prompt_tokens: int
    uncached_tokens: int
    output_tokens: int
    ttft_ms_p95: float | str | None = None
    hit_rate: float | None = None


class Rates(msgspec.Struct, frozen=True):
    """Requests per second: as scheduled, and as sent. None where they all came at once."""

    requested: float | None
    achieved: float | None


class TurnFigures(msgspec.Struct, frozen=True):
    """All requests that were the n-th of their conversation."""

    turn: int
    requests: int
    hit_rate: float | None
    ttft_ms_p50: float | str | None
    ttft_ms_p95: float | str | None


class Lengths(msgspec.Struct, frozen=True):
    """Mean tokens per request: what the workload wished, and what the engine counted."""

    asked_input: float
    input: float
    asked_output: float
    output: float


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds. `*_failed_inf`: failures and turns never sent count as infinite.

    `*_sent`: from sending instead of from the scheduled arrival.
    """

    ttft: Quantiles
    ttft_failed_inf: Quantiles
    ttft_sent: Quantiles
    ttft_content: Quantiles
    itl: Quantiles
    chunk_gap: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    e2e_failed_inf: Quantiles
    e2e_sent: Quantiles


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to. `latency_ms` and rates are over requests that were answered."""

    planned: int
    sent: int
    ok: int
    errors: int
    unsent: int
    errors_by_kind: dict[str, int]
    error_examples: list[str]
    is_stopped: bool
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    rates: Rates
    hit_rate: float | None
    hit_rate_bound: float | None = None
    hit_rate_bound_method: str | None = None
    goodput: Goodput | None = None
    latency_ms: Latencies
    lengths: Lengths
    token_sources: dict[str, int]
    turns: list[TurnFigures]
    replicas: list[ReplicaShare]
    load_spread: float | None
    engines: list[EngineCounters] = []
    client: ClientHealth


def summarize(
    result: RunResult,
    replica_ids: Sequence[str] = (),
    goodput_ms: Mapping[str, float] | None = None,
) -> Summary:
    """`replica_ids`: all that could have answered, so that one without a request counts in."""
    records = result.records
    ok = [record for record in records if record.is_ok]
    lost = result.planned - len(ok) if not result.is_stopped else len(records) - len(ok)
    duration_s = result.duration_s or math.inf
    replicas = replica_shares(ok, replica_ids)
    kinds = Counter(kind_of(record) for record in records if not record.is_ok)
    return Summary(
        planned=result.planned,
        sent=len(records),
        ok=len(ok),
        errors=len(records) - len(ok),
        unsent=result.planned - len(records),
        errors_by_kind=dict(kinds),
        error_examples=_examples(records),
        is_stopped=result.is_stopped,
        duration_s=round(result.duration_s, 3),
        requests_per_s=round(len(ok) / duration_s, 3),
        output_tokens_per_s=round(sum(r.output_tokens for r in ok) / duration_s, 2),
        prompt_tokens_per_s=round(sum(r.prompt_tokens or 0 for r in ok) / duration_s, 2),
        rates=rates(records),
        hit_rate=hit_rate(ok),
        goodput=goodput(records, result.planned, result.duration_s, goodput_ms or {}),
        latency_ms=_latencies(ok, lost),
        lengths=_lengths(ok),
        token_sources=dict(Counter(record.token_source for record in ok)),
        turns=turn_figures(ok),
        replicas=replicas,
        load_spread=load_spread([share.requests for share in replicas]),
        client=client_health(result),
    )


def hit_rate(records: Iterable[Record]) -> float | None:
    """Cached / prompt tokens, both as the engine reported them; None (not 0) if it was silent."""
    told = [r for r in records if r.cached_tokens is not None and r.prompt_tokens]
    prompt_tokens = sum(r.prompt_tokens or 0 for r in told)
    if not prompt_tokens:
        return None
    return round(sum(r.cached_tokens or 0 for r in told) / prompt_tokens, 5)


def rates(records: Sequence[Record]) -> Rates:
    """Between the first and the last: a client that fell behind sends later than it should."""
    return Rates(
        requested=_rate([record.scheduled_s for record in records]),
        achieved=_rate([record.sent_s for record in records]),
    )


def _rate(times: Sequence[float]) -> float | None:
    span_s = max(times, default=0.0) - min(times, default=0.0)
    return round((len(times) - 1) / span_s, 3) if span_s > 0 else None


def turn_figures(records: Iterable[Record]) -> list[TurnFigures]:
    """By position in the conversation; empty when there are only single turns."""
    by_turn: dict[int, list[Record]] = {}
    for record in records:
        by_turn.setdefault(record.turn, []).append(record)
    if len(by_turn) < 2:
        return []
    found = []
    for turn, answered in sorted(by_turn.items()):
        ttft = _ttft(answered)
        found.append(TurnFigures(turn, len(answered), hit_rate(answered), ttft.p50, ttft.p95))
    return found


def _ttft(records: Iterable[Record]) -> Quantiles:
    return quantiles([1e3 * r.ttft_s for r in records if r.ttft_s is not None])


def kind_of(record: Record) -> str:
    """An outcome, with its status where that says more: "http 503"."""
    return f"http {record.status}" if record.outcome == "http" else record.outcome


def token_gaps(record: Record) -> Iterator[float]:
    """Seconds per token, one value for each token after the first arrival."""
    carried_s = 0.0
    for gap_s, tokens in record.chunk_gaps():
        carried_s += gap_s
        if tokens:
            yield from [carried_s / tokens] * tokens
            carried_s = 0.0


def load_spread(loads: Sequence[int]) -> float | None:
    """Most loaded / mean: 1 is even, n means that one of n did everything."""
    total = sum(loads)
    return round(max(loads) * len(loads) / total, 3) if total else None


def replica_shares(records: Sequence[Record], ids: Sequence[str]) -> list[ReplicaShare]:
    """By the replica's name in the answers' headers; empty for a server that names none."""
    by_id: dict[str, list[Record]] = {replica_id: [] for replica_id in ids}
    for record in records:
        if record.replica is not None:
            by_id.setdefault(record.replica, []).append(record)
    return [
        ReplicaShare(
            id=replica_id,
            requests=len(answered),
            prompt_tokens=sum(r.prompt_tokens or 0 for r in answered),
            uncached_tokens=sum((r.prompt_tokens or 0) - (r.cached_tokens or 0) for r in answered),
            output_tokens=sum(r.output_tokens for r in answered),
            ttft_ms_p95=_ttft(answered).p95,
            hit_rate=hit_rate(answered),
        )
        for replica_id, answered in sorted(by_id.items())
    ]


def _latencies(ok: Sequence[Record], lost: int) -> Latencies:
    def of(value: Callable[[Record], float | None], infinite: int = 0) -> Quantiles:
        found = [1e3 * v for r in ok if (v := value(r)) is not None]
        return quantiles([*found, *([math.inf] * infinite)])

    return Latencies(
        ttft=of(lambda r: r.ttft_s),
        ttft_failed_inf=of(lambda r: r.ttft_s, lost),
        ttft_sent=of(lambda r: r.ttft_sent_s),
        ttft_content=of(lambda r: r.ttft_content_s),
        itl=quantiles(array("d", (1e3 * gap for r in ok for gap in token_gaps(r)))),
        chunk_gap=quantiles(array("d", (1e3 * gap for r in ok for gap, _ in r.chunk_gaps()))),
        tpot=of(lambda r: r.tpot_s),
        e2e=of(lambda r: r.e2e_s),
        e2e_failed_inf=of(lambda r: r.e2e_s, lost),
        e2e_sent=of(lambda r: r.e2e_sent_s),
    )


def _lengths(ok: Sequence[Record]) -> Lengths:
    n = len(ok) or 1
    return Lengths(
        asked_input=round(sum(r.asked_input_tokens for r in ok) / n, 1),
        input=round(sum(r.prompt_tokens or 0 for r in ok) / n, 1),
        asked_output=round(sum(r.asked_output_tokens for r in ok) / n, 1),
        output=round(sum(r.output_tokens for r in ok) / n, 1),
    )


def _examples(records: Sequence[Record]) -> list[str]:
    """The first message of each kind of error."""
    first: dict[str, str] = {}
    for record in records:
        if not record.is_ok:
            first.setdefault(kind_of(record), record.error)
    return [f"{kind}: {message}" for kind, message in first.items()]
