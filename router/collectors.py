"""Metrics that are read when they are asked for: what replicas, tokenizers and routers are now."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """A replica as `/metrics` shows it now."""

    replica: str
    is_healthy: bool
    is_breaker_open: bool
    in_flight: int
    queued_tokens: int
    index_blocks: int
    trust: str
    trust_reason: str
    frames: int | None
    """None: a central index reads its events, and counts them."""
    gaps: int
    resyncs: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenizerSample:
    """A local tokenizer as `/metrics` shows it now; `tokenizer`: the first model it serves."""

    tokenizer: str
    is_trusted: bool
    verdicts: Mapping[str, int]
    memo_bytes: int
    memo_hits: int
    memo_misses: int
    stuck_threads: int


@dataclass(frozen=True, slots=True)
class SharedSample:
    """What routers share, as `/metrics` shows it now. `failures`: round trips, by state;
    `responses`: asks that went on from a stored response, by where its replica was known;
    `untold`: replicas for whose load the processes of this host have no room; `news`: the state of
    telling at once what changes, `told_after_s`: how long that takes."""

    state: str
    routers: int
    failures: Mapping[str, int]
    wipes: int
    responses: Mapping[str, int] = field(default_factory=dict)
    untold: int = 0
    news: str = "off"
    news_told: int = 0
    news_heard: int = 0
    told_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShadowSample:
    """What a policy, acting or not, would have done so far. `ttft_buckets`: (bound in s, requests
    up to it), the last without a bound."""

    policy: str
    same: int
    others: int
    prompt_tokens: int
    hit_tokens: int
    ttft_buckets: Sequence[tuple[str, float]]
    ttft_sum_s: float


class ShadowCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[ShadowSample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        label = ["policy"]
        choices = CounterMetricFamily(
            "warmgate_shadow_choices", "Its first choices, and whether the acting policy's is the "
            "same.", labels=[*label, "same"],
        )  # fmt: skip
        prompt = CounterMetricFamily(
            "warmgate_shadow_prompt_tokens", "Prompt tokens that policies were compared on.",
            labels=label,
        )  # fmt: skip
        hits = CounterMetricFamily(
            "warmgate_shadow_hit_tokens", "Those of them whose reuse it would have had, by "
            "prediction.", labels=label,
        )  # fmt: skip
        ttft = HistogramMetricFamily(
            "warmgate_shadow_ttft_seconds", "TTFT that was predicted for its first choice.",
            labels=label,
        )  # fmt: skip
        for sample in self._read():
            name = [sample.policy]
            choices.add_metric([*name, "yes"], sample.same)
            choices.add_metric([*name, "no"], sample.others)
            prompt.add_metric(name, sample.prompt_tokens)
            hits.add_metric(name, sample.hit_tokens)
            ttft.add_metric(name, list(sample.ttft_buckets), sample.ttft_sum_s)
        yield from (choices, prompt, hits, ttft)


class SharedCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[SharedSample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "warmgate_shared_state", "1 for the state of what routers share.", labels=["state"]
        )
        routers = GaugeMetricFamily("warmgate_shared_routers", "Routers known to run, with us.")
        failures = CounterMetricFamily(
            "warmgate_shared_failures", "Round trips that failed.", labels=["state"]
        )
        responses = CounterMetricFamily(
            "warmgate_stored_responses", "Asks that went on from a stored response, by where its "
            "replica was known: here, shared, unknown, failed.", labels=["where"],
        )  # fmt: skip
        wipes = CounterMetricFamily("warmgate_shared_wipes", "Times the store came back empty.")
        untold = GaugeMetricFamily(
            "warmgate_shared_untold_replicas",
            "Replicas whose load this host's processes can't share: too many at once.",
        )
        news = GaugeMetricFamily(
            "warmgate_shared_news_state", "1 for the state of telling routers at once what has "
            "changed; while it isn't ok, load is exchanged instead.", labels=["state"],
        )  # fmt: skip
        pieces = CounterMetricFamily(
            "warmgate_shared_news", "Pieces of news of load: told by us, heard of others.",
            labels=["way"],
        )  # fmt: skip
        after = GaugeMetricFamily(
            "warmgate_shared_told_seconds", "From a change until its news are heard, in the mean."
        )
        for sample in self._read():
            news.add_metric([sample.news], 1)
            pieces.add_metric(["told"], sample.news_told)
            pieces.add_metric(["heard"], sample.news_heard)
            after.add_metric([], sample.told_after_s)
            state.add_metric([sample.state], 1)
            untold.add_metric([], sample.untold)
            routers.add_metric([], sample.routers)
            wipes.add_metric([], sample.wipes)
            for kind, count in sample.failures.items():
                failures.add_metric([kind], count)
            for where, count in sample.responses.items():
                responses.add_metric([where], count)
        yield from (state, routers, failures, wipes, responses, untold, news, pieces, after)


class CentralCollector(Collector):
    """A router's questions to the central index."""

    def __init__(
        self, outcomes: Callable[[], Mapping[str, int]], is_connected: Callable[[], bool]
    ) -> None:
        self._outcomes, self._is_connected = outcomes, is_connected

    def collect(self) -> Iterator[Metric]:
        asked = CounterMetricFamily(
            "warmgate_index_questions", "Questions to the central index, by what came of them.",
            labels=["outcome"],
        )  # fmt: skip
        for outcome, number in dict(self._outcomes()).items():
            asked.add_metric([outcome], number)
        connected = GaugeMetricFamily(
            "warmgate_index_connected", "1 while the central index can be asked."
        )
        connected.add_metric([], self._is_connected())
        yield from (asked, connected)


class DeskCollector(Collector):
    """The central index's side: routers that may ask, questions answered."""

    def __init__(self, routers: Callable[[], int], answered: Callable[[], int]) -> None:
        self._routers, self._answered = routers, answered

    def collect(self) -> Iterator[Metric]:
        routers = GaugeMetricFamily(
            "warmgate_index_routers", "Routers that are connected to the central index."
        )
        routers.add_metric([], self._routers())
        answered = CounterMetricFamily(
            "warmgate_index_answers", "Questions that the central index has answered."
        )
        answered.add_metric([], self._answered())
        yield from (routers, answered)


class TokenizerCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[TokenizerSample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        label = ["tokenizer"]
        trusted = GaugeMetricFamily(
            "warmgate_tokenizer_trusted", "1 while its ids are believed to be the engine's.",
            labels=label,
        )  # fmt: skip
        judged = CounterMetricFamily(
            "warmgate_tokenizer_verdicts", "Prompts compared with the engine's own ids.",
            labels=[*label, "verdict"],
        )  # fmt: skip
        memo = GaugeMetricFamily(
            "warmgate_tokenizer_memo_bytes", "Text and ids that are remembered.", labels=label
        )
        pieces = CounterMetricFamily(
            "warmgate_tokenizer_pieces", "Pieces of text by where their ids came from.",
            labels=[*label, "source"],
        )  # fmt: skip
        stuck = GaugeMetricFamily(
            "warmgate_tokenizer_stuck_threads", "Threads whose job is past its deadline.",
            labels=label,
        )  # fmt: skip
        for sample in self._read():
            name = [sample.tokenizer]
            trusted.add_metric(name, sample.is_trusted)
            memo.add_metric(name, sample.memo_bytes)
            stuck.add_metric(name, sample.stuck_threads)
            pieces.add_metric([*name, "memo"], sample.memo_hits)
            pieces.add_metric([*name, "encoded"], sample.memo_misses)
            for verdict, count in sample.verdicts.items():
                judged.add_metric([*name, verdict], count)
        yield from (trusted, judged, memo, pieces, stuck)


class ReplicaCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[ReplicaSample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        breaker = _gauge("replica_breaker_open", "1 while its circuit breaker lets nothing pass.")
        healthy = _gauge("replica_healthy", "1 while the replica can be chosen.")
        in_flight = _gauge("replica_in_flight", "Requests in flight at the replica.")
        queued = _gauge("replica_queued_tokens", "Uncached prompt tokens without a first token.")
        blocks = _gauge("index_blocks", "Blocks that the index says the replica holds.")
        trust = _gauge(
            "index_trust",
            "1 for the state of the index's trust in it; numbers in the reason are N.",
            "trust", "reason",
        )  # fmt: skip
        frames = _counter("event_frames", "Frames of KV events applied.")
        gaps = _counter("event_gaps", "Gaps in the sequence of frames.")
        resyncs = _counter("event_resyncs", "Times the replica's blocks were learnt anew.")
        share = _gauge("replica_share", "Share of prompts that it may get; under 1 while new.")
        for sample in self._read():
            label = [sample.replica]
            healthy.add_metric(label, sample.is_healthy)
            breaker.add_metric(label, sample.is_breaker_open)
            in_flight.add_metric(label, sample.in_flight)
            queued.add_metric(label, sample.queued_tokens)
            blocks.add_metric(label, sample.index_blocks)
            # without its numbers, so that there are few different reasons
            reason = _NUMBER.sub("N", sample.trust_reason)
            trust.add_metric([*label, sample.trust, reason], 1)
            if sample.frames is not None:
                frames.add_metric(label, sample.frames)
                gaps.add_metric(label, sample.gaps)
                resyncs.add_metric(label, sample.resyncs)
            share.add_metric(label, sample.share)
        yield from (healthy, breaker, in_flight, queued, blocks, trust, frames, gaps, resyncs)
        yield share


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"warmgate_{name}", text, labels=["replica", *labels])


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"warmgate_{name}", text, labels=["replica"])
