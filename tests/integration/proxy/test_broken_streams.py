"""An engine that dies after the first byte: an error the client can read, never a silent end."""

import dataclasses

import pytest

from router.openai.usage import Usage
from router.proxy.reply import Outcome
from tests.support.proxy import Connection, Engine, always, ask, connected, gateway, post
from tests.support.raw_http import PATH, STREAM_HEAD, capture, chunk, event, json_reply, split_reply
from tests.support.spliced import QUICK

BEGINNING = STREAM_HEAD + chunk(event("a")) + chunk(event("b"))


def dies_after(data: bytes, how: str):
    async def play(connection: Connection) -> None:
        await connection.request()
        await connection.send(data)
        if how == "reset":
            connection.reset()
        elif how == "hang":
            await connection.until_closed()

    return play


@pytest.mark.parametrize("how", ["close", "reset", "hang"])
@pytest.mark.parametrize("rest", [b"", b"ff\r\n", chunk(event("c")[:30])])
@pytest.mark.parametrize("path", [PATH, "/v1/messages"])
async def test_a_cut_stream_ends_in_an_error_event_and_an_orderly_body(how, rest, path):
    limits = dataclasses.replace(QUICK, idle_timeout_s=0.1)
    async with gateway(Engine(dies_after(BEGINNING + rest, how)), limits=limits) as app:
        message = post(path=path, extra=b"Connection: close\r\n")
        status, _, body, whole = await ask(app.port, message)
        assert (status, whole) == (200, True)
        assert body.startswith(event("a"))
        last = body.split(b"\n\n")[-2]
        prefix = b"event: error\ndata: {" if path == "/v1/messages" else b'data: {"error"'
        assert last.startswith(prefix)
        report = app.reports[0]
        assert report.outcome is Outcome.CUT_SHORT
        assert report.tries == 1
        assert app.forwarder.pool.open_connections == 0


async def test_the_clients_connection_survives_a_cut_stream():
    engine = Engine(dies_after(BEGINNING, "close"), always(json_reply(b"{}")))
    async with gateway(engine) as app, connected(app.port) as client:
        await client.send(post())
        first = await client.reader.readuntil(b"0\r\n\r\n")
        assert b'data: {"error"' in first
        await client.send(post(extra=b"Connection: close\r\n"))
        assert split_reply(await client.reader.read(-1))[2] == b"{}"


async def test_the_engines_own_error_event_passes_and_is_noted():
    async with gateway(Engine(always(capture("engine-died-stream")))) as app:
        _, _, body, whole = await ask(app.port)
        assert (body, whole) == (split_reply(capture("engine-died-stream"))[2], True)
        assert app.reports[0].outcome is Outcome.REPLICA_ERROR


async def test_ten_megabytes_without_a_line_end_pass_in_bounded_memory():
    long = b"data: " + b"x" * 10_000_000 + b"\n\n"
    reply = STREAM_HEAD + chunk(event("a")) + chunk(long) + b"0\r\n\r\n"
    async with gateway(Engine(always(reply))) as app:
        _, _, body, whole = await ask(app.port)
        assert whole
        assert body == event("a") + long


async def test_half_a_json_body_and_then_silence_is_a_timeout():
    limits = dataclasses.replace(QUICK, idle_timeout_s=0.1)
    half = json_reply(b'{"choices":[]}')[:-5]
    async with gateway(Engine(dies_after(half, "hang")), limits=limits) as app:
        assert (await ask(app.port))[0] == 504


async def test_a_long_json_body_that_dies_is_cut_and_not_whole():
    reply = json_reply(b"[" + b"1," * 100_000 + b"1]")
    async with gateway(Engine(dies_after(reply[:150_000], "close"))) as app:
        try:
            whole = (await ask(app.port))[3]
        except ConnectionError:
            whole = False
        assert not whole


@pytest.mark.parametrize("name", ["chat", "chat-stream-usage", "completion-stream", "messages"])
async def test_real_replies_come_through_with_their_usage(name):
    async with gateway(Engine(always(capture(name)))) as app:
        status, headers, body, whole = await ask(app.port)
        expected_status, expected_headers, expected_body, _ = split_reply(capture(name))
        assert (status, body, whole) == (expected_status, expected_body, True)
        for header in ("date", "server", "content-type", "vary"):
            assert headers[header] == expected_headers[header]
        assert headers["x-request-id"] == "ours"
        report = app.reports[0]
        assert report.outcome is Outcome.OK
        assert isinstance(report.usage, Usage)
        assert report.first_byte_at is not None
        assert report.first_byte_at <= report.ended_at
        assert report.bytes_sent > len(body)
