"""Every metric: its name, labels and meaning in one place. `GET /metrics` prints them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.record import Outcome, RequestRecord

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 13, 30, 60)
PLAN_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
HIT_ERROR_BUCKETS = (-4096, -1024, -256, -64, -1, 0, 63, 255, 1023, 4095)
UNKNOWN_MODEL = "unknown"

M = TypeVar("M", Counter, Histogram)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per series, which nobody asks for


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
    frames: int
    gaps: int
    resyncs: int


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
    """What routers share, as `/metrics` shows it now. `failures`: round trips, by state."""

    state: str
    routers: int
    failures: Mapping[str, int]
    wipes: int


class _SharedCollector(Collector):
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
        wipes = CounterMetricFamily("warmgate_shared_wipes", "Times the store came back empty.")
        for sample in self._read():
            state.add_metric([sample.state], 1)
            routers.add_metric([], sample.routers)
            wipes.add_metric([], sample.wipes)
            for kind, count in sample.failures.items():
                failures.add_metric([kind], count)
        yield from (state, routers, failures, wipes)


class _TokenizerCollector(Collector):
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


class _ReplicaCollector(Collector):
    def __init__(self, read: Callable[[], Iterable[ReplicaSample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        breaker = _gauge("replica_breaker_open", "1 while its circuit breaker lets nothing pass.")
        healthy = _gauge("replica_healthy", "1 while the replica can be chosen.")
        in_flight = _gauge("replica_in_flight", "Requests in flight at the replica.")
        queued = _gauge("replica_queued_tokens", "Uncached prompt tokens without a first token.")
        blocks = _gauge("index_blocks", "Blocks that the index says the replica holds.")
        trust = _gauge("index_trust", "1 for the state of the index's trust in it.", "trust")
        frames = _counter("event_frames", "Frames of KV events applied.")
        gaps = _counter("event_gaps", "Gaps in the sequence of frames.")
        resyncs = _counter("event_resyncs", "Times the replica's blocks were learnt anew.")
        for sample in self._read():
            label = [sample.replica]
            healthy.add_metric(label, sample.is_healthy)
            breaker.add_metric(label, sample.is_breaker_open)
            in_flight.add_metric(label, sample.in_flight)
            queued.add_metric(label, sample.queued_tokens)
            blocks.add_metric(label, sample.index_blocks)
            trust.add_metric([*label, sample.trust], 1)
            frames.add_metric(label, sample.frames)
            gaps.add_metric(label, sample.gaps)
            resyncs.add_metric(label, sample.resyncs)
        yield from (healthy, breaker, in_flight, queued, blocks, trust, frames, gaps, resyncs)


class Metrics:
    """One router's metrics, in a registry of their own."""

    def __init__(
        self,
        read_replicas: Callable[[], Iterable[ReplicaSample]],
        read_tokenizers: Callable[[], Iterable[TokenizerSample]] = tuple,
        read_shared: Callable[[], Iterable[SharedSample]] = tuple,
    ) -> None:
        self.registry = CollectorRegistry()
        self._children: dict[tuple[object, ...], object] = {}
        self.registry.register(_ReplicaCollector(read_replicas))
        self.registry.register(_TokenizerCollector(read_tokenizers))
        self.registry.register(_SharedCollector(read_shared))
        self._requests = self._counter(
            "requests", "Requests by how they ended.", "model", "outcome"
        )
        self._decisions = self._counter("decisions", "First choices by reason.", "model", "reason")
        self._retries = self._counter("retries", "Further replicas tried.", "model")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens, by the engine.", "model")
        self._hits = self._counter("hit_tokens", "Prompt tokens reused, by the engine.", "model")
        self._predicted = self._counter(
            "predicted_hit_tokens", "Prompt tokens whose reuse was predicted.", "model"
        )
        self._unpredicted = self._counter(
            "missed_hit_tokens", "Predicted, but not reused, prompt tokens.", "model"
        )
        self._hit_error = self._histogram(
            "hit_error_tokens", "Reused less predicted prompt tokens; above 0: more than known.",
            HIT_ERROR_BUCKETS, "replica",
        )  # fmt: skip
        self._blind = self._counter(
            "tokenize_failures", "Requests routed without their prefix.", "reason"
        )
        self._failures = self._counter(
            "replica_failures", "Attempts that failed, by what was seen.", "replica", "error"
        )
        self._refusals = self._counter(
            "tenant_refusals", "Requests beyond a tenant's bound.", "tenant", "bound"
        )
        self._restarts = self._counter("task_restarts", "Background tasks started over.", "task")
        self._ttft = self._histogram(
            "ttft_seconds", "From the request's head to the first byte of a streamed reply.",
            TTFT_BUCKETS_S, "model",
        )  # fmt: skip
        self._duration = self._histogram(
            "request_seconds", "From the request's head to the end.", TTFT_BUCKETS_S, "model"
        )
        self._plan = self._histogram(
            "plan_seconds", "Tokenize, hash, match, rank and reserve.", PLAN_BUCKETS_S
        )

    def count_request(self, record: RequestRecord) -> None:
        """Fold one finished request in. Labels are bounded: only models that are served."""
        rejected = record.outcome is Outcome.REJECTED and not record.replica
        model = UNKNOWN_MODEL if rejected or not record.model else record.model
        self._child(self._requests, model, record.outcome).inc()
        self._child(self._duration, model).observe(record.total_ms / 1e3)
        if not record.replica:
            return
        self._child(self._decisions, model, record.reason).inc()
        self._plan.observe(record.plan_ms / 1e3)
        if record.tries > 1:
            self._retries.labels(model).inc(record.tries - 1)
        if record.ttft_ms is not None:
            self._child(self._ttft, model).observe(record.ttft_ms / 1e3)
        if record.tokenize_failure:
            self._blind.labels(record.tokenize_failure).inc()
        self._count_tokens(model, record)

    def count_failure(self, replica: str, error: str) -> None:
        """An attempt at a replica failed, or its reply broke off. Full ones count here too."""
        self._failures.labels(replica, error).inc()

    def watch_index(self, bytes_of: Callable[[], int], max_bytes: int) -> None:
        """Show what the index takes, and may take."""
        taken = Gauge("warmgate_index_bytes", "What the index takes.", registry=self.registry)
        taken.set_function(bytes_of)
        bound = Gauge("warmgate_index_max_bytes", "What it may take.", registry=self.registry)
        bound.set(max_bytes)

    def count_refusal(self, tenant: str, bound: str) -> None:
        """A request was refused with 429. Tenants are bounded: only those of the key file."""
        self._refusals.labels(tenant, bound).inc()

    def count_restart(self, task: str) -> None:
        """A background task started over; the label is its kind, not its replica."""
        self._restarts.labels(task.partition(" ")[0]).inc()

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def _count_tokens(self, model: str, record: RequestRecord) -> None:
        if record.prompt_tokens is not None:
            self._child(self._prompt, model).inc(record.prompt_tokens)
        if record.hit_tokens is None:
            return
        self._child(self._hits, model).inc(record.hit_tokens)
        if (predicted := record.predicted_hit_tokens) is not None:
            error = record.hit_tokens - predicted
            self._child(self._hit_error, record.replica).observe(error)
            self._child(self._predicted, model).inc(predicted)
            self._child(self._unpredicted, model).inc(max(0, predicted - record.hit_tokens))

    def _child(self, parent: M, *labels: str) -> M:
        """`parent.labels(...)`, which costs more than counting itself, remembered."""
        key = (id(parent), *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = parent.labels(*labels)
        return cast(M, child)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"warmgate_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"warmgate_{name}", text, labels, buckets=buckets, registry=self.registry)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"warmgate_{name}", text, labels=["replica", *labels])


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"warmgate_{name}", text, labels=["replica"])
