import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.openai.usage import Usage, find_usage
from tests.support.raw_http import capture, split_reply

REAL = {
    "chat": Usage(24, 7, None),
    "chat-stream-usage": Usage(24, 7, 0),
    "chat-stream-continuous-usage-tokenids": Usage(24, 7, 0),
    "completion-stream": Usage(5, 12, 0),
    "messages": Usage(31, 8, 0),
    "generate-tokens": Usage(11, 6, 0),
}


@pytest.mark.parametrize("name", REAL)
def test_usage_of_real_replies_is_found(name):
    body = split_reply(capture(name))[2]
    found = find_usage(body)
    assert found is not None
    expected = REAL[name]
    assert (found.prompt_tokens, found.completion_tokens) == (
        expected.prompt_tokens,
        expected.completion_tokens,
    )
    assert found.cached_tokens in (expected.cached_tokens, 0, None)


@pytest.mark.parametrize("name", ["chat-stream", "generate-tokens-stream", "error-too-long"])
def test_replies_without_usage_have_none(name):
    assert find_usage(split_reply(capture(name))[2]) is None


def test_responses_usage_has_its_own_names():
    body = (
        b'{"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4},'
        b'"output_tokens": 2}}'
    )
    assert find_usage(body) == Usage(9, 2, 4)


def test_anthropic_prompt_is_the_sum_of_its_three_parts():
    body = (
        b'{"usage":{"input_tokens":10,"cache_read_input_tokens":64,'
        b'"cache_creation_input_tokens":6,"output_tokens":3}}'
    )
    assert find_usage(body) == Usage(80, 3, 64)


def test_the_last_usage_wins_and_null_is_passed_over():
    body = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}} {"usage": null}'
    assert find_usage(body) == Usage(1, 1, None)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"usage"',
        b'{"usage": {"prompt_tokens": 3',
        b'{"usage": {"prompt_tokens": "three"}}',
        b'{"usage": {"seconds": 4}}',
        b'{"usage": "a lot"}',
        b'{"usage": {"\xff": 1}}',
    ],
)
def test_other_shapes_are_no_usage(text):
    assert find_usage(text) is None


@given(st.text(), st.sampled_from(["", "data: ", '{"', "\\"]))
def test_usage_inside_text_is_never_taken(text, before):
    trap = before + '"usage": {"prompt_tokens": 666, "completion_tokens": 666}' + text
    body = json.dumps({"choices": [{"text": trap}], "x": {trap: [trap]}}).encode()
    assert find_usage(body) is None


@given(st.text(max_size=50), st.integers(0, 2**40), st.integers(0, 2**40))
def test_usage_is_found_after_text_that_speaks_of_it(text, prompt, completion):
    trap = text + '"usage": {"prompt_tokens": 666}'
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    body = json.dumps({"choices": [{"text": trap}], "usage": usage, "note": trap}).encode()
    assert find_usage(body) == Usage(prompt, completion, None)
