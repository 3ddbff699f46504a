"""One exchange, fed by hand: what the client gets, and when."""

import dataclasses
import json

import pytest
from aiohttp import HttpVersion10

from router.errors import NoReplicaAvailable, ReplicaFailed, ReplicaUnreachable
from router.openai.usage import Usage
from router.proxy.refusal import refusal_of
from tests.support.raw_http import (
    DONE,
    LAST,
    ROLE,
    STREAM_HEAD,
    capture,
    chunk,
    event,
    json_reply,
    split_reply,
    stream,
)
from tests.support.spliced import QUICK, FakeRequest, Notes, splice

ANSWER = json_reply(b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}')
ABORTED = b'{"choices":[{"message":{"content":""},"finish_reason":"abort"}]}'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'


async def test_a_json_reply_keeps_its_bytes_and_its_headers():
    result = await splice([ANSWER])
    status, headers, body, whole = split_reply(result.sent)
    assert (status, whole) == (200, True)
    assert body == split_reply(ANSWER)[2]
    assert headers["content-type"] == "application/json"
    assert headers["x-warmgate-replica"] == "r1"
    assert result.request.transport.writes == 1
    assert result.exchange.failure is None


async def test_a_stream_is_marked_as_not_to_be_buffered():
    result = await splice([stream(ROLE, event("hi"), USAGE, DONE)])
    _, headers, body, whole = split_reply(result.sent)
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"
    assert (body, whole) == (ROLE + event("hi") + USAGE + DONE, True)
    assert result.exchange.splice is not None
    assert result.exchange.splice.usage() == Usage(9, 2, None)


async def test_chunks_of_whole_events_pass_untouched():
    first, second = chunk(event("a")), b"00" + chunk(event("b"))
    result = await splice([STREAM_HEAD + chunk(event("x")), first, second, LAST])
    assert result.sent.endswith(first + second + LAST)


async def test_early_headers_are_kept_until_the_first_token():
    kept = await splice([STREAM_HEAD, chunk(ROLE)])
    assert kept.sent == b""
    assert kept.notes.calls == []
    passed = await splice([STREAM_HEAD, chunk(ROLE), chunk(event("hi"))])
    assert split_reply(passed.sent)[2] == ROLE + event("hi")
    assert passed.notes.calls == [("first_byte", "r1")]


@pytest.mark.parametrize(
    "reply",
    [ANSWER, stream(ROLE, event("hi"), DONE), stream(ROLE, DONE)],
    ids=["json", "stream", "stream without a token"],
)
async def test_a_listener_is_told_just_before_and_just_after_the_client_gets_its_first_byte(reply):
    request = FakeRequest()
    seen = []

    class Watching(Notes):
        def first_byte(self, replica, status, start):
            super().first_byte(replica, status, start)
            seen.append((start, bytes(request.transport.written)))

        def first_byte_sent(self, replica, status):
            seen.append((b"", bytes(request.transport.written)))

    result = await splice([reply], request, notes=Watching())
    assert result.notes.calls == [("first_byte", "r1")]
    [(start, before), (_, after)] = seen
    assert start
    assert before == b""
    assert split_reply(after)[2].startswith(start)


async def test_a_comment_reaches_the_client_before_the_first_token():
    result = await splice([STREAM_HEAD, chunk(ROLE), chunk(b": ping\n\n")])
    assert split_reply(result.sent)[2] == b": ping\n\n"
    assert result.notes.calls == []
    assert result.exchange.first_byte_at is None


@pytest.mark.parametrize("reply", [json_reply(ABORTED), stream(ROLE, event("", '"abort"'), DONE)])
async def test_an_abort_without_a_token_is_never_sent(reply):
    result = await splice([reply])
    assert isinstance(result.exchange.failure, ReplicaFailed)
    assert result.sent == b""


@pytest.mark.parametrize("name", ["aborted-by-pause-stream", "aborted-by-pause-plain"])
async def test_an_abort_after_tokens_is_the_clients_to_see(name):
    result = await splice([capture(name)])
    assert split_reply(result.sent)[2] == split_reply(capture(name))[2]


async def test_half_an_event_is_kept_back():
    half, rest = event("b")[:20], event("b")[20:]
    result = await splice([STREAM_HEAD + chunk(event("a")), chunk(half)])
    assert split_reply(result.sent)[2] == event("a")
    whole = await splice([STREAM_HEAD + chunk(event("a")), chunk(half), chunk(rest), LAST])
    assert split_reply(whole.sent)[2] == event("a") + event("b")


@pytest.mark.parametrize("cut", [b"", chunk(event("b")[:20]), b"ff\r\ndata: ", b"f"])
async def test_a_stream_that_dies_ends_in_an_error_event(cut):
    result = await splice([STREAM_HEAD + chunk(event("a")), cut or LAST[:1]], then_lost=True)
    _, _, body, whole = split_reply(result.sent)
    assert whole
    first, last = body.split(b"\n\n")[:2]
    assert first + b"\n\n" == event("a")
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["code"] == "replica_failed"
    assert b"[DONE]" not in body
    assert isinstance(result.exchange.failure, ReplicaFailed)


async def test_done_inside_text_does_not_end_a_stream():
    text = event("data: [DONE]\\n\\n")
    result = await splice([STREAM_HEAD + chunk(text) + chunk(event("more"))], then_lost=True)
    assert split_reply(result.sent)[2].startswith(text + event("more") + b'data: {"error"')


async def test_a_broken_chunk_in_a_stream_ends_it_in_an_error_event():
    result = await splice([STREAM_HEAD + chunk(event("a")), b"garbage\r\n\r\n"])
    assert b'data: {"error"' in split_reply(result.sent)[2]
    assert result.engine.is_aborted is False
    assert not result.exchange.is_client_gone


async def test_a_long_line_passes_in_bounded_pieces_and_cannot_end_in_an_event():
    limits = dataclasses.replace(QUICK, held_bytes=1000)
    pieces = [STREAM_HEAD + chunk(event("a")), *(chunk(b"x" * 600) for _ in range(5))]
    result = await splice(pieces, limits=limits, then_lost=True)
    _, _, body, whole = split_reply(result.sent)
    assert body.startswith(event("a") + b"x" * 1800)
    assert b"error" not in body
    assert not whole
    assert not result.request.transport.is_aborted
    keeps_alive = result.exchange.failure is None
    assert not keeps_alive


async def test_a_json_reply_that_dies_sends_nothing():
    result = await splice([ANSWER[:-5]], then_lost=True)
    assert isinstance(result.exchange.failure, ReplicaFailed)
    assert result.sent == b""


async def test_a_json_reply_too_long_to_keep_breaks_the_connection():
    limits = dataclasses.replace(QUICK, held_bytes=1000)
    reply = json_reply(b"[" + b"1," * 2000 + b"1]")
    result = await splice([reply[:3000]], limits=limits, then_lost=True)
    assert not split_reply(result.sent)[3]
    assert result.request.transport.is_aborted


async def test_usage_of_a_long_json_reply_may_stand_at_its_start():
    limits = dataclasses.replace(QUICK, held_bytes=1000, tail_bytes=100)
    body = b'{"usage":{"prompt_tokens":4,"completion_tokens":5},"ids":[' + b"1," * 4000 + b"1]}"
    reply = json_reply(body)
    result = await splice([reply[:2000], reply[2000:]], limits=limits)
    assert result.exchange.splice is not None
    assert result.exchange.splice.usage() == Usage(4, 5, None)
    assert split_reply(result.sent)[2] == body


@pytest.mark.parametrize(
    "reply",
    [b"SSH-2.0-x\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"H" * 99],
)
async def test_no_http_at_all_is_a_failure_at_once(reply):
    result = await splice([reply])
    assert isinstance(result.exchange.failure, ReplicaFailed)


async def test_a_head_without_end_is_refused():
    pieces = [b"HTTP/1.1 200 OK\r\n", *[b"a: " + b"x" * 1000 + b"\r\n"] * 100]
    result = await splice(pieces)
    assert isinstance(result.exchange.failure, ReplicaFailed)


async def test_interim_replies_are_skipped():
    result = await splice(
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\na: b\r\n\r\n" + ANSWER]
    )
    assert split_reply(result.sent)[0] == 200
    assert b"Continue" not in result.sent


@pytest.mark.parametrize(
    ("reply", "is_full"),
    [
        (json_reply(b"{}", b"429 Too Many"), True),
        (capture("error-503-queue-full"), True),
        (json_reply(b"{}", b"503 No", b"retry-after: 1\r\n"), True),
        (json_reply(b"{}", b"503 No"), False),
        (json_reply(b"{}", b"502 No"), False),
        (json_reply(b"{}", b"504 No"), False),
    ],
)
async def test_refusals_are_kept_and_a_full_replica_is_told_from_a_broken_one(reply, is_full):
    result = await splice([reply])
    assert result.sent == b""
    error = refusal_of("r1", result.exchange.head, result.exchange.splice)
    assert isinstance(error, NoReplicaAvailable if is_full else ReplicaFailed)


@pytest.mark.parametrize("status", [b"400 Bad", b"404 No", b"422 No", b"500 No"])
async def test_other_errors_are_relayed(status):
    result = await splice([json_reply(b'{"error":{}}', status)])
    assert refusal_of("r1", result.exchange.head, result.exchange.splice) is None
    assert split_reply(result.sent)[0] == int(status[:3])


async def test_a_head_request_gets_the_length_and_no_body():
    result = await splice([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"], FakeRequest("HEAD"))
    assert split_reply(result.sent)[1]["content-length"] == "5"
    assert result.exchange.failure is None


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_replies_without_body_have_no_framing(status):
    result = await splice([b"HTTP/1.1 %b\r\n\r\n" % status])
    _, headers, body, _ = split_reply(result.sent)
    assert body == b""
    assert not headers.keys() & {"content-length", "transfer-encoding"}
    assert result.exchange.is_over


async def test_an_empty_reply_is_whole():
    result = await splice([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
    assert result.exchange.is_over
    assert split_reply(result.sent)[1]["content-length"] == "0"


async def test_a_body_until_close_becomes_chunks():
    reply = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nsome text"
    result = await splice([reply], then_lost=True)
    assert split_reply(result.sent)[2:] == (b"some text", True)


async def test_an_old_client_gets_no_chunks():
    old = FakeRequest(version=HttpVersion10, keep_alive=False)
    result = await splice([stream(event("a"), event("b"))], old)
    _, headers, body, _ = split_reply(result.sent)
    assert body == event("a") + event("b")
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"


async def test_an_old_client_that_asks_for_it_keeps_its_connection():
    old = FakeRequest(version=HttpVersion10, keep_alive=True)
    _, headers, _, whole = split_reply((await splice([ANSWER], old)).sent)
    assert headers["connection"] == "keep-alive"
    assert whole


async def test_a_client_that_closes_its_connection_is_told_so():
    result = await splice([ANSWER], FakeRequest(keep_alive=False))
    assert split_reply(result.sent)[1]["connection"] == "close"


async def test_compressed_replies_pass_as_they_are():
    packed = b"\x1f\x8b packed"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n"
    result = await splice([head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed])
    assert split_reply(result.sent)[2] == packed


async def test_a_client_that_left_stops_the_exchange():
    request = FakeRequest()
    request.transport.is_aborted = True
    result = await splice([ANSWER], request)
    assert result.exchange.is_client_gone
    assert result.sent == b""


async def test_a_connection_that_ends_before_it_answers_is_unreachable():
    result = await splice([], then_lost=True)
    assert isinstance(result.exchange.failure, ReplicaUnreachable)
    assert not result.exchange.is_stale
