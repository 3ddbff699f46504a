"""Another replica, never the same, and only before the first byte."""

import asyncio
import dataclasses
import json

import pytest

from router.errors import (
    NoReplicaAvailable,
    ReplicaFailed,
    ReplicaTimeout,
    ReplicaUnreachable,
)
from router.proxy.reply import Outcome
from router.replicas.replica import Replica
from tests.support.proxy import Connection, Engine, always, ask, gateway, replies
from tests.support.raw_http import (
    DONE,
    LAST,
    ROLE,
    STREAM_HEAD,
    capture,
    chunk,
    event,
    json_reply,
    stream,
)
from tests.support.spliced import QUICK

GOOD = json_reply(b'{"ok":true}')
ABORT_JSON = json_reply(b'{"choices":[{"finish_reason":"abort","text":""}]}')


async def reset_before_reply(connection: Connection) -> None:
    await connection.request()
    connection.reset()


async def reset_after_head(connection: Connection) -> None:
    await connection.request()
    await connection.send(STREAM_HEAD + chunk(ROLE))
    connection.reset()


async def hang(connection: Connection) -> None:
    await connection.request()
    await connection.until_closed()


async def hang_after_head(connection: Connection) -> None:
    await connection.request()
    await connection.send(STREAM_HEAD)
    await connection.until_closed()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (replies(), ReplicaUnreachable),
        (reset_before_reply, ReplicaUnreachable),
        (reset_after_head, ReplicaFailed),
        (replies(b"SSH-2.0-OpenSSH\r\n"), ReplicaFailed),
        (
            replies(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"),
            ReplicaFailed,
        ),
        (
            replies(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n"),
            ReplicaFailed,
        ),
        (replies(GOOD[:-3]), ReplicaFailed),
        (always(ABORT_JSON), ReplicaFailed),
        (always(stream(ROLE, event("", '"abort"'), DONE)), ReplicaFailed),
        (always(json_reply(b"{}", b"502 Bad")), ReplicaFailed),
        (always(json_reply(b"{}", b"504 Late")), ReplicaFailed),
        (always(capture("error-503-queue-full")), NoReplicaAvailable),
        (always(json_reply(b"{}", b"429 Too Many")), NoReplicaAvailable),
    ],
)
async def test_the_next_replica_answers_in_place_of_one_that_fails(script, error):
    bad, good = Engine(script), Engine(always(GOOD))
    async with gateway(bad, good) as app:
        status, headers, body, _ = await ask(app.port)
        assert (status, body) == (200, b'{"ok":true}')
        assert headers["x-warmgate-replica"] == "r2"
        assert bad.accepted == 1
        assert app.notes.calls == [
            ("trying", "r1"),
            ("failed", "r1"),
            ("trying", "r2"),
            ("first_byte", "r2"),
        ]
        assert [type(each) for each in app.notes.errors] == [error]
        assert (app.reports[0].tries, app.reports[0].outcome) == (2, Outcome.OK)


async def test_a_port_that_refuses_is_passed_over():
    bad, good = Engine(always(GOOD)), Engine(always(GOOD))
    async with gateway(bad, good) as app:
        await bad.stop()
        assert (await ask(app.port))[1]["x-warmgate-replica"] == "r2"
        assert isinstance(app.notes.errors[0], ReplicaUnreachable)


async def test_no_more_than_the_budget_is_tried_and_none_twice():
    engines = [Engine(reset_before_reply) for _ in range(5)]
    async with gateway(*engines) as app:
        app.replicas = [app.replicas[0], *app.replicas]
        status, _, body, _ = await ask(app.port)
        assert (status, json.loads(body)["error"]["code"]) == (502, "replica_unreachable")
        assert [engine.accepted for engine in engines] == [1, 1, 1, 0, 0]


async def test_without_replicas_there_is_none_to_blame():
    async with gateway() as app:
        assert (await ask(app.port))[0] == 503
        assert app.notes.calls == []


async def test_the_last_refusal_is_relayed_when_all_are_full():
    full = json_reply(b'{"error":"full"}', b"429 Too Many", b"Retry-After: 7\r\n")
    async with gateway(Engine(always(full)), Engine(reset_before_reply)) as app:
        status, headers, body, _ = await ask(app.port)
        assert (status, body) == (429, b'{"error":"full"}')
        assert headers["retry-after"] == "7"
        assert headers["x-warmgate-replica"] == "r1"
        assert app.reports[0].outcome is Outcome.REPLICA_ERROR
        assert ("first_byte", "r1") not in app.notes.calls


async def test_an_error_of_the_request_is_not_tried_elsewhere():
    other = Engine(always(GOOD))
    async with gateway(Engine(always(capture("error-too-long"))), other) as app:
        status, headers, body, _ = await ask(app.port)
        assert status == 400
        assert headers["content-type"] == "application/json"
        assert b"maximum context length" in body
        assert other.accepted == 0
        assert app.reports[0].outcome is Outcome.REPLICA_ERROR


@pytest.mark.parametrize("script", [hang, hang_after_head])
async def test_a_silent_replica_times_out_and_is_not_tried_elsewhere(script):
    silent, other = Engine(script), Engine(always(GOOD))
    limits = dataclasses.replace(QUICK, first_byte_timeout_s=0.2, idle_timeout_s=0.1)
    async with gateway(silent, other, limits=limits) as app:
        status, _, body, _ = await ask(app.port)
        assert (status, json.loads(body)["error"]["code"]) == (504, "replica_timeout")
        assert isinstance(app.notes.errors[0], ReplicaTimeout)
        assert other.accepted == 0
        assert app.forwarder.pool.idle_connections == 0


async def test_a_slow_prefill_is_not_idle():
    """Headers come long before the first token; the idle limit begins with the token."""

    async def slow(connection: Connection) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(ROLE))
        await asyncio.sleep(0.3)
        await connection.send(chunk(event("hi")) + LAST)

    limits = dataclasses.replace(QUICK, idle_timeout_s=0.1)
    async with gateway(Engine(slow), limits=limits) as app:
        assert (await ask(app.port))[2] == ROLE + event("hi")


async def test_an_address_that_never_answers_costs_the_connect_limit():
    limits = dataclasses.replace(QUICK, connect_timeout_s=0.2)
    async with gateway(Engine(always(GOOD)), limits=limits) as app:
        # 192.0.2.0/24 is for documentation: no route, or no answer
        app.replicas = [Replica("nowhere", "http://192.0.2.1:9"), *app.replicas]
        assert (await ask(app.port))[1]["x-warmgate-replica"] == "r1"
        assert isinstance(app.notes.errors[0], ReplicaUnreachable)
