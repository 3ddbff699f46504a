"""Traces as a collector gets them, over OTLP, and the context that the engine gets."""

import json
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from router.config import ConfigError
from router.tracing import NoTracer
from tests.support.faults import CHAT, FaultyEngine, works
from tests.support.gateway import gateway

BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = 1  # another bit says that a new trace's id is random


class Heads(FaultyEngine):
    """Remembers the heads of generations."""

    def __init__(self, fault):
        super().__init__(fault)
        self.heads = []

    async def _answer(self, connection):
        whole = connection.request

        async def request():
            head, body = await whole()
            if body:
                self.heads.append(head.decode().lower())
            return head, body

        connection.request = request
        return await super()._answer(connection)

    def traceparents(self):
        lines = [line for head in self.heads for line in head.split("\r\n")]
        return [line.partition(": ")[2] for line in lines if line.startswith("traceparent:")]


async def dies(connection, is_stream):
    """Before the first byte of its reply."""
    connection.reset()


@asynccontextmanager
async def collector():
    """Its URL, and the spans that came."""
    spans = []

    async def take(request):
        told = ExportTraceServiceRequest.FromString(await request.read())
        for resource in told.resource_spans:
            for scope in resource.scope_spans:
                spans.extend(scope.spans)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces", spans
    finally:
        await runner.cleanup()


async def asked(url, *engines, share=1.0, stream=False, **headers):
    """The record's trace id after one request; leaving the gateway has sent the spans."""
    rows = [{"id": f"r{n}", "url": engine.url} for n, engine in enumerate(engines, 1)]
    log = {"traces_to": url, "traces_share": share}
    routing = {"policy": "round-robin"}
    async with gateway(rows, tokens={"remote": False}, log=log, routing=routing) as run:
        body = {**BODY, "stream": stream}
        async with run.client.post(CHAT, json=body, headers=headers) as response:
            await response.read()
            return response.status


async def test_a_clients_trace_goes_on_through_the_gateway_to_the_engine():
    engine = Heads(works)
    await engine.listen()
    async with collector() as (url, spans):
        given = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        assert await asked(url, engine, stream=True, **given) == 200
    by_name = {span.name: span for span in spans}
    request = by_name.pop(f"POST {CHAT}")
    assert request.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT
    assert engine.traceparents() == [f"00-{TRACE}-{request.span_id.hex()}-01"]
    assert "tracestate: vendor=1" in engine.heads[0]
    assert set(by_name) == {"plan", "queue", "first byte", "stream"}
    assert {span.parent_span_id for span in by_name.values()} == {request.span_id}
    times = [(s.start_time_unix_nano, s.end_time_unix_nano) for s in by_name.values()]
    assert times[0][0] == request.start_time_unix_nano
    assert times[-1][1] == request.end_time_unix_nano
    assert all(one[1] == two[0] for one, two in pairwise(times))
    assert all(start <= end for start, end in times)
    told = {pair.key: pair.value for pair in request.attributes}
    assert told["warmgate.replica"].string_value == "r1"
    assert told["http.response.status_code"].int_value == 200
    assert "hello" not in str(spans)
    await engine.stop()


async def test_without_a_trace_a_new_one_begins_and_a_failure_is_one():
    engine = Heads(dies)
    await engine.listen()
    async with collector() as (url, spans):
        assert await asked(url, engine) >= 500
    request = next(span for span in spans if span.name.startswith("POST"))
    assert request.parent_span_id == b""
    assert request.status.code == 2
    *ids, flags = engine.traceparents()[0].split("-")
    assert ids == ["00", request.trace_id.hex(), request.span_id.hex()]
    assert int(flags, 16) & SAMPLED
    await engine.stop()


async def test_what_is_not_sampled_is_passed_on_and_not_sent():
    engine = Heads(works)
    await engine.listen()
    async with collector() as (url, spans):
        assert await asked(url, engine, share=0.0) == 200
        given = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert await asked(url, engine, **given) == 200
    assert spans == []
    flags = [int(text[-2:], 16) for text in engine.traceparents()]
    assert [number & SAMPLED for number in flags] == [0, 0]
    assert engine.traceparents()[1][3:35] == TRACE
    await engine.stop()


async def test_a_collector_that_is_away_fails_no_request():
    engine = Heads(works)
    await engine.listen()
    assert await asked("http://127.0.0.1:9/v1/traces", engine) == 200
    await engine.stop()


async def test_without_a_collector_the_clients_context_passes_as_it_is():
    engine = Heads(works)
    await engine.listen()
    rows = [{"id": "r1", "url": engine.url}]
    async with gateway(rows, tokens={"remote": False}) as run:
        assert isinstance(run.runtime.tracer, NoTracer)
        assert run.runtime.tracer.open({}) is run.runtime.tracer.open({}), "made per request"
        given = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        async with run.client.post(CHAT, json=BODY, headers=given) as response:
            assert json.loads(await response.read())["model"] == "m"
    assert engine.traceparents() == [given["traceparent"]]
    await engine.stop()


async def test_a_share_is_between_none_and_all():
    with pytest.raises(ConfigError, match="traces_share"):
        async with gateway([], log={"traces_share": 1.5}):
            pass
