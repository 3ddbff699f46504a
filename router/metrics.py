"""Every metric: its name, labels and meaning in one place. `GET /metrics` prints them."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from router.collectors import (
    CentralCollector,
    DeskCollector,
    ReplicaCollector,
    ReplicaSample,
    ShadowCollector,
    ShadowSample,
    SharedCollector,
    SharedSample,
    TokenizerCollector,
    TokenizerSample,
)
from router.record import Outcome, RequestRecord
from router.tally import Spread, Tally

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8, 13, 30, 60)
PLAN_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
HIT_ERROR_BUCKETS = (-4096, -1024, -256, -64, -1, 0, 63, 255, 1023, 4095)
UNKNOWN_MODEL = "unknown"


class Metrics:
    """One router's metrics, in a registry of their own."""

    def __init__(
        self,
        read_replicas: Callable[[], Iterable[ReplicaSample]],
        read_tokenizers: Callable[[], Iterable[TokenizerSample]] = tuple,
        read_shared: Callable[[], Iterable[SharedSample]] = tuple,
        read_shadows: Callable[[], Iterable[ShadowSample]] = tuple,
        blind_reasons: Iterable[str] = (),
    ) -> None:
        self.registry = CollectorRegistry()
        self._read_replicas = read_replicas
        self._seen: list[ReplicaSample] = []
        for collector in (
            ReplicaCollector(lambda: self._seen),
            TokenizerCollector(read_tokenizers),
            SharedCollector(read_shared),
            ShadowCollector(read_shadows),
        ):
            self.registry.register(collector)
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
        self._reachable = self._counter(
            "reachable_hit_tokens", "Prompt tokens that the replica which held most had.", "model"
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
        for reason in blind_reasons:
            # from 0: a rate shows the first of its kind
            self._blind.add((reason,), 0)
        self._failures = self._counter(
            "replica_failures", "Attempts that failed, by what was seen.", "replica", "error"
        )
        self._refusals = self._counter(
            "tenant_refusals", "Requests beyond a tenant's bound.", "tenant", "bound"
        )
        self._used = self._counter(
            "tenant_used", "What tenants with a budget took of it.", "tenant", "budget"
        )
        self._budget = Gauge(
            "warmgate_tenant_budget", "What a tenant may take in a minute.",
            ("tenant", "budget"), registry=self.registry,
        )  # fmt: skip
        self._restarts = self._counter("task_restarts", "Background tasks started over.", "task")
        self._ttft = self._histogram(
            "ttft_seconds", "From the request's head to the first byte of a streamed reply.",
            TTFT_BUCKETS_S, "model",
        )  # fmt: skip
        self._predicted_ttft = self._histogram(
            "predicted_ttft_seconds", "TTFT that was predicted for the replica that answered.",
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
        of_model = (model,)
        self._requests.add((model, record.outcome))
        self._duration.observe(of_model, record.total_ms / 1e3)
        if not record.replica:
            return
        self._decisions.add((model, record.reason))
        self._plan.observe((), record.plan_ms / 1e3)
        if (predicted_ms := record.predicted_ttft_ms) is not None:
            self._predicted_ttft.observe(of_model, predicted_ms / 1e3)
        if record.tries > 1:
            self._retries.add(of_model, record.tries - 1)
        if record.ttft_ms is not None:
            self._ttft.observe(of_model, record.ttft_ms / 1e3)
        if record.tokenize_failure:
            self._blind.add((record.tokenize_failure,))
        self._count_tokens(of_model, record)

    def count_failure(self, replica: str, error: str) -> None:
        """An attempt at a replica failed, or its reply broke off. Full ones count here too."""
        self._failures.add((replica, error))

    def watch_index(self, bytes_of: Callable[[], int], max_bytes: int) -> None:
        """Show what the index takes, and may take."""
        taken = Gauge("warmgate_index_bytes", "What the index takes.", registry=self.registry)
        taken.set_function(bytes_of)
        bound = Gauge("warmgate_index_max_bytes", "What it may take.", registry=self.registry)
        bound.set(max_bytes)

    def watch_queue(self, length: Callable[[], int]) -> Callable[[str, float], None]:
        """Show how many requests wait in the router. To be told how each wait ended, and after how
        many seconds."""
        waiting = Gauge(
            "warmgate_queue_requests", "Requests that wait in the router now.",
            registry=self.registry,
        )  # fmt: skip
        waiting.set_function(length)
        waits = self._histogram(
            "queue_seconds", "Waits in the router until a replica could start, by how they ended.",
            TTFT_BUCKETS_S, "outcome",
        )  # fmt: skip
        return lambda how, wait_s: waits.observe((how,), wait_s)

    def watch_central(
        self, outcomes: Callable[[], Mapping[str, int]], is_connected: Callable[[], bool]
    ) -> None:
        """Show how the central index answers."""
        self.registry.register(CentralCollector(outcomes, is_connected))

    def watch_desk(self, routers: Callable[[], int], answered: Callable[[], int]) -> None:
        """Show who asks this central index."""
        self.registry.register(DeskCollector(routers, answered))

    def watch_warm_up(self) -> Callable[[int], None]:
        """To be told how many tokens a new replica computed before its first request."""
        computed = self._counter(
            "warm_up_tokens", "Prompt tokens that new replicas computed before their first request."
        )
        computed.add((), 0.0)
        return lambda tokens: computed.add((), tokens)

    def count_refusal(self, tenant: str, bound: str) -> None:
        """A request was refused with 429. Tenants are bounded: only those of the key file."""
        self._refusals.add((tenant, bound))

    def count_use(self, tenant: str, budget: str, bound: int, used: int) -> None:
        """A request of a tenant that may take `bound` of `budget` in a minute took `used`."""
        self._budget.labels(tenant, budget).set(bound)
        self._used.add((tenant, budget), used)

    def know_task(self, task: str) -> None:
        """A background task has been started; see `count_restart`."""
        self._restarts.add((task.partition(" ")[0],), 0)

    def count_restart(self, task: str) -> None:
        """A background task started over; the label is its kind, not its replica."""
        self._restarts.add((task.partition(" ")[0],))

    def look(self) -> None:
        """See how replicas are now. By the data path's thread alone: to read an index, or what is
        in flight, may book what waits to be booked."""
        self._seen = list(self._read_replicas())

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format, replicas as they were at the last look."""
        return generate_latest(self.registry)

    def _count_tokens(self, of_model: tuple[str], record: RequestRecord) -> None:
        if record.prompt_tokens is not None:
            self._prompt.add(of_model, record.prompt_tokens)
        if (hit := record.hit_tokens) is None:
            return
        self._hits.add(of_model, hit)
        if (predicted := record.predicted_hit_tokens) is not None:
            self._hit_error.observe((record.replica,), hit - predicted)
            self._predicted.add(of_model, predicted)
            self._reachable.add(of_model, max(predicted, record.reachable_hit_tokens or 0))
            self._unpredicted.add(of_model, max(0, predicted - hit))

    def _counter(self, name: str, text: str, *labels: str) -> Tally:
        tally = Tally(f"warmgate_{name}", text, *labels)
        self.registry.register(tally)
        return tally

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Spread:
        spread = Spread(f"warmgate_{name}", text, bounds, *labels)
        self.registry.register(spread)
        return spread
