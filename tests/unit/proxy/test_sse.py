import json

import pytest

from router.errors import ReplicaFailed
from router.proxy.sse import (
    Sign,
    error_event,
    first_event_end,
    holds_error,
    is_aborted,
    last_event_end,
    sign_of,
)
from tests.support.raw_http import DONE, ROLE, capture, event, split_reply


def choice(**fields: object) -> bytes:
    return b"data: " + json.dumps({"choices": [fields]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("data", "first", "last"),
    [
        (b"a\n\nb\n\nc", 3, 6),
        (b"a\r\n\r\nb\r\n\r\nc", 5, 10),
        (b"a\n\nb\r\n\r\n", 3, 8),
        (b"a\r\n\r\nb\n\n", 5, 8),
        (b"a\nb", -1, 0),
        (b"", -1, 0),
    ],
)
def test_events_end_at_blank_lines(data, first, last):
    assert first_event_end(data) == first
    assert last_event_end(data) == last


@pytest.mark.parametrize(
    ("data", "sign"),
    [
        (ROLE, Sign.NOTHING_YET),
        (event(""), Sign.NOTHING_YET),
        (event("hi"), Sign.TOKEN),
        (event("", '"stop"'), Sign.TOKEN),
        (event("", '"abort"'), Sign.ABORT),
        (event("hi", '"abort"'), Sign.TOKEN),
        (choice(text=""), Sign.NOTHING_YET),
        (choice(text="a"), Sign.TOKEN),
        (choice(text="", token_ids=[1]), Sign.TOKEN),
        (choice(delta={"reasoning_content": "hm"}), Sign.TOKEN),
        (choice(delta={"tool_calls": [{"id": "x"}]}), Sign.TOKEN),
        (b'data: {"choices":[],"usage":{}}\n\n', Sign.NOTHING_YET),
        (b'data: {"error":{"message":"x"}}\n\n', Sign.TOKEN),
        (b'event: message_start\ndata: {"type":"message_start"}\n\n', Sign.TOKEN),
        (b'data: {"choices":\r\ndata: [{"text":""}]}\r\n\r\n', Sign.NOTHING_YET),
        (DONE, Sign.TOKEN),
        (b": ping\n\n", Sign.COMMENT),
        (b":\r\n\r\n", Sign.COMMENT),
        (b"\n\n", Sign.COMMENT),
        (b"data: \xff\n\n", Sign.TOKEN),
    ],
)
def test_sign_of_an_event(data, sign):
    assert sign_of(data) is sign


def test_an_abort_is_empty_only_if_no_choice_has_a_token():
    one = {"finish_reason": "abort", "message": {"role": "assistant", "content": ""}}
    two = {"finish_reason": "abort", "message": {"role": "assistant", "content": "x"}}
    assert is_aborted(json.dumps({"choices": [one, one]}).encode())
    assert not is_aborted(json.dumps({"choices": [one, two]}).encode())
    assert not is_aborted(json.dumps({"choices": [], "note": "abort"}).encode())
    assert not is_aborted(split_reply(capture("aborted-by-pause-plain"))[2])


def test_only_an_event_of_its_own_is_the_engines_error():
    assert holds_error(split_reply(capture("engine-died-stream"))[2])
    assert holds_error(b'x\n\nevent: error\ndata: {"type":"error"}\n\n')
    assert not holds_error(split_reply(capture("chat-stream-usage"))[2])
    assert not holds_error(event('\\ndata: {\\"error\\": 1}'))


def test_error_events_have_the_shape_of_their_api():
    error = ReplicaFailed('it "broke"\n')
    openai = error_event("/v1/chat/completions", error)
    assert openai.endswith(b"\n\n")
    assert json.loads(openai.removeprefix(b"data: "))["error"] == {
        "message": 'it "broke"\n',
        "type": "server_error",
        "code": "replica_failed",
    }
    first, second, *_ = error_event("/v1/messages", error).split(b"\n")
    assert first == b"event: error"
    anthropic = json.loads(second.removeprefix(b"data: "))
    assert anthropic["type"] == "error"
    assert anthropic["error"]["type"] == "api_error"
