"""Traces by OpenTelemetry's SDK (the extra `otel`): W3C context in and out, OTLP over HTTP.

A request's span begins with the request; those of its parts are made from its record when it is
over, so that nothing is done on the way. The SDK sends them from a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.record import Outcome, RequestRecord
from router.tracing import Trace

EXPORT_TIMEOUT_S: Final = 5.0
_W3C: Final = TraceContextTextMapPropagator()
_OURS: Final = (Outcome.OK, Outcome.REJECTED, Outcome.CLIENT_GONE)
"""Ends that are no fault of the service's."""


class OtelTracer:
    """Owns the SDK's provider. `share`: of requests whose client has not decided on tracing."""

    def __init__(self, endpoint: str, share: float, version: str = "") -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "warmgate", "service.version": version}),
            sampler=ParentBased(TraceIdRatioBased(share)),
        )
        exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("warmgate")

    def open(self, headers: Mapping[str, str]) -> Trace:
        return RequestTrace(self._tracer, headers, time.time_ns)

    def close(self) -> None:
        """Send what is left. Blocks, for `EXPORT_TIMEOUT_S` or so."""
        self._provider.shutdown()


class RequestTrace(Trace):
    """`wall`: ns since 1970; the record's own clock tells how long things took."""

    def __init__(self, tracer: Tracer, headers: Mapping[str, str], wall: Callable[[], int]) -> None:
        self._tracer = tracer
        self._began_ns = wall()
        self._span: Span = tracer.start_span(
            "request",
            context=_W3C.extract({name: headers[name] for name in _W3C.fields if name in headers}),
            kind=SpanKind.SERVER,
            start_time=self._began_ns,
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._span))
        self.headers = [(name.encode(), value.encode()) for name, value in carrier.items()]
        self._record: RequestRecord | None = None

    def tell(self, record: RequestRecord) -> None:
        self._record = record
        record.trace_id = f"{self._span.get_span_context().trace_id:032x}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        record = self._record
        if record is None or not self._span.is_recording():
            self._span.end()
            return
        self._span.update_name(f"POST {record.path}")
        self._span.set_attributes(dict(attributes(record)))
        if record.outcome not in _OURS:
            self._span.set_status(Status(StatusCode.ERROR, record.error or record.outcome))
        inside = set_span_in_context(self._span)
        for name, start_ms, end_ms in stages(record):
            part = self._tracer.start_span(name, context=inside, start_time=self._at(start_ms))
            part.end(self._at(end_ms))
        self._span.end(self._at(record.total_ms))

    def _at(self, ms: float) -> int:
        return self._began_ns + int(ms * 1e6)


def stages(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """(name, begin, end) in ms since the request came. Those that it never reached are left out.

    plan: body, budget, tokens, choice. queue: until it goes to the replica that answers; long when
    others were tried before. first byte: what the replica takes to begin. stream: to the end.
    """
    if not record.replica:
        return
    sent_ms, first_ms = record.sent_ms, record.first_byte_ms
    yield "plan", 0.0, record.plan_ms
    yield "queue", record.plan_ms, sent_ms
    yield "first byte", sent_ms, record.total_ms if first_ms is None else first_ms
    if first_ms is not None:
        yield "stream", first_ms, record.total_ms


def attributes(record: RequestRecord) -> Iterator[tuple[str, str | int | float | bool]]:
    """OpenTelemetry's own names where it has some. Never a prompt, never a key."""
    known = {
        "url.path": record.path,
        "http.request.method": "POST",
        "http.response.status_code": record.status or None,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "warmgate.request_id": record.request_id,
        "warmgate.tenant": record.tenant,
        "warmgate.replica": record.replica,
        "warmgate.reason": record.reason,
        "warmgate.tries": record.tries,
        "warmgate.outcome": record.outcome,
        "warmgate.hit_tokens": record.hit_tokens,
        "warmgate.predicted_hit_tokens": record.predicted_hit_tokens,
        "warmgate.predicted_ttft_ms": record.predicted_ttft_ms,
        "warmgate.ttft_ms": record.ttft_ms,
    }
    for name, value in known.items():
        if value is not None and value != "":
            yield name, value
