"""Ids of stored responses: in answers, in streams, in asks."""

import json

import pytest

from router.openai.generation import parse_generation
from router.openai.responses import find_response_id, is_response, previous_response


def ask(path="/v1/responses", **fields):
    body = json.dumps({"model": "m", "input": "x", **fields}).encode()
    return parse_generation(path, {}, body)


@pytest.mark.parametrize(
    "start",
    [
        b'{"id":"resp_1","object":"response","output":[{"id":"msg_2"}]}',
        b'{"error": null, "id" : "resp_1", "output":[{"id":"msg_2"}]}',
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0,'
        b'"response":{"id":"resp_1","created_at":1}}\n\n',
        b'data: {"response":{"id":"resp_1"},"type":"response.created"}\n\n'
        b'data: {"item":{"id":"x"}}\n\n',
        b'{"metadata":{"said":"\\"id\\":\\"no\\""},"id":"resp_1"}',
    ],
)
def test_the_first_id_of_an_answer_is_the_responses(start):
    assert find_response_id(start) == "resp_1"


@pytest.mark.parametrize(
    "start", [b"", b"{}", b'{"id":7}', b'{"id":""}', b'{"id":"%b"}' % (b"x" * 300), b'{"id":"a']
)
def test_what_is_no_id_is_none(start):
    assert find_response_id(start) is None


def test_only_answers_of_the_responses_api_that_are_to_be_kept_are_kept():
    assert is_response(ask())
    assert is_response(ask(store=True))
    assert not is_response(ask(store=False))
    assert not is_response(ask("/v1/embeddings"))


def test_an_ask_says_what_it_goes_on_from():
    assert previous_response(ask(previous_response_id="resp_1")) == "resp_1"
    for value in (None, "", 7, ["resp_1"], "x" * 300):
        assert previous_response(ask(previous_response_id=value)) is None
