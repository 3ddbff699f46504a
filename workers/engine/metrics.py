"""What the engine counts, and `/metrics` under vLLM's names (labels `engine` and `model_name`)."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from workers.engine.scheduler import Step
from workers.engine.sequence import Finish
from workers.engine.sequence import Sequence as Seq

_LATENCY_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_SLOW_S: Final = (0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_FIRST_TOKEN_S: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, *_SLOW_S)
_BETWEEN_TOKENS_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, *_SLOW_S[1:11])
_TOKENS: Final = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_STEP_TOKENS: Final = (1.0, *(float(8 << shift) for shift in range(12)))


class Histogram:
    """Counts by upper bound; cheaper than the client library's, which locks per observation."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulated counts as the text format wants them."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class CoreMetrics:
    """One core's counters. Times are the clock's, so they include the speed-up."""

    def __init__(self) -> None:
        self.prompt_tokens = self.hit_tokens = self.generated_tokens = self.preemptions = 0
        self.lag_s = 0.0
        self.finished = dict.fromkeys(Finish, 0)
        self.first_token_s = Histogram(_FIRST_TOKEN_S)
        self.between_tokens_s = Histogram(_BETWEEN_TOKENS_S)
        self.whole_s = Histogram(_LATENCY_S)
        self.queue_s = Histogram(_LATENCY_S)
        self.prefill_s = Histogram(_LATENCY_S)
        self.decode_s = Histogram(_LATENCY_S)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generated_tokens = Histogram(_TOKENS)
        self.step_tokens = Histogram(_STEP_TOKENS)

    def count_step(self, step: Step, started: float) -> None:
        """`started`: when the step began."""
        self.step_tokens.observe(float(sum(share.tokens for share in step.shares)))
        self.preemptions += len(step.preempted)
        for sequence in step.admitted:
            if sequence.moments.scheduled is None:
                sequence.moments.scheduled = started
                self.prompt_tokens += sequence.prompt_len
                self.hit_tokens += sequence.hit_tokens
                self.queue_s.observe(started - sequence.moments.arrived)

    def count_token(self, sequence: Seq, now: float) -> None:
        """A token was sampled and handed over."""
        self.generated_tokens += 1
        moments = sequence.moments
        if moments.last_token is None:
            moments.first_token = now
            self.first_token_s.observe(now - moments.arrived)
        else:
            self.between_tokens_s.observe(now - moments.last_token)
        moments.last_token = now

    def count_finish(self, sequence: Seq, now: float) -> None:
        """A sequence ended, by itself or not."""
        if sequence.finish is None:
            raise ValueError("this sequence has not ended")
        self.finished[sequence.finish] += 1
        moments = sequence.moments
        self.whole_s.observe(now - moments.arrived)
        self.request_prompt_tokens.observe(float(sequence.prompt_len))
        self.request_generated_tokens.observe(float(sequence.answered))
        if moments.scheduled is not None and moments.first_token is not None:
            self.prefill_s.observe(moments.first_token - moments.scheduled)
            self.decode_s.observe(now - moments.first_token)


class CoreGauges:
    """What a core is doing at this moment, for one scrape."""

    __slots__ = ("running", "usage", "waiting")

    def __init__(self, running: int, waiting: int, usage: float) -> None:
        self.running = running
        self.waiting = waiting
        self.usage = usage


_COUNTERS: Final = {
    "vllm:num_preemptions": ("Cumulative number of preemptions.", "preemptions"),
    "vllm:prefix_cache_queries": ("Prefix cache queries, in tokens.", "prompt_tokens"),
    "vllm:prefix_cache_hits": ("Prefix cache hits, in tokens.", "hit_tokens"),
    "vllm:prompt_tokens": ("Number of prefill tokens processed.", "prompt_tokens"),
    "vllm:prompt_tokens_cached": ("Prompt tokens found in the cache.", "hit_tokens"),
    "vllm:generation_tokens": ("Number of generation tokens processed.", "generated_tokens"),
    "warmgate_engine_lag_seconds": ("Modelled time lost to a slow machine.", "lag_s"),
}
_HISTOGRAMS: Final = {
    "vllm:iteration_tokens_total": ("Tokens per engine step.", "step_tokens"),
    "vllm:request_prompt_tokens": ("Prompt tokens per request.", "request_prompt_tokens"),
    "vllm:request_generation_tokens": ("Tokens per answer.", "request_generated_tokens"),
    "vllm:time_to_first_token_seconds": ("Time to first token.", "first_token_s"),
    "vllm:inter_token_latency_seconds": ("Gap between tokens.", "between_tokens_s"),
    "vllm:e2e_request_latency_seconds": ("Arrival to last token.", "whole_s"),
    "vllm:request_queue_time_seconds": ("Time in the queue.", "queue_s"),
    "vllm:request_prefill_time_seconds": ("First schedule to first token.", "prefill_s"),
    "vllm:request_decode_time_seconds": ("First to last token.", "decode_s"),
}
_LABELS: Final = ("engine", "model_name")


class EngineCollector(Collector):
    """Renders the counters of all ranks at each scrape."""

    def __init__(
        self, model: str, cores: Sequence[CoreMetrics], cache_config: dict[str, str]
    ) -> None:
        self._model = model
        self._cores = cores
        self._cache_config = cache_config
        self.gauges: Sequence[CoreGauges] = ()
        """Set before each scrape, one per rank."""

    def collect(self) -> Iterator[Metric]:
        yield from self._now()
        yield from self._counters()
        yield from self._histograms()
        info = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=(*self._cache_config, "engine"),
        )
        info.add_metric((*self._cache_config.values(), "0"), 1.0)
        yield info

    def _now(self) -> Iterator[Metric]:
        running = self._gauge("vllm:num_requests_running", "Requests in execution batches.")
        waiting = self._gauge("vllm:num_requests_waiting", "Requests waiting to be processed.")
        usage = self._gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent.")
        reasons = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "Waiting, by reason.",
            labels=[*_LABELS, "reason"],
        )
        for rank, gauges in enumerate(self.gauges):
            labels = (str(rank), self._model)
            running.add_metric(labels, gauges.running)
            waiting.add_metric(labels, gauges.waiting)
            usage.add_metric(labels, gauges.usage)
            reasons.add_metric((*labels, "capacity"), gauges.waiting)
            reasons.add_metric((*labels, "deferred"), 0.0)
        yield from (running, waiting, reasons, usage)

    def _counters(self) -> Iterator[Metric]:
        for name, (text, attribute) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=_LABELS)
            for rank, core in enumerate(self._cores):
                family.add_metric((str(rank), self._model), getattr(core, attribute))
            yield family
        done = CounterMetricFamily(
            "vllm:request_success", "Finished requests.", labels=[*_LABELS, "finished_reason"]
        )
        by_source = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Prompt tokens by source.", labels=[*_LABELS, "source"]
        )
        for rank, core in enumerate(self._cores):
            labels = (str(rank), self._model)
            for reason, count in core.finished.items():
                done.add_metric((*labels, reason), count)
            by_source.add_metric((*labels, "local_compute"), core.prompt_tokens - core.hit_tokens)
            by_source.add_metric((*labels, "local_cache_hit"), core.hit_tokens)
        yield from (done, by_source)

    def _histograms(self) -> Iterator[Metric]:
        for name, (text, attribute) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=_LABELS)
            for rank, core in enumerate(self._cores):
                histogram: Histogram = getattr(core, attribute)
                family.add_metric((str(rank), self._model), histogram.buckets(), histogram.total)
            yield family

    def _gauge(self, name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, labels=_LABELS)
