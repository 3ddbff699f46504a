"""What a stream says: first token, tokens per arrival, usage, and what counts as a failure."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.reply import BY_TEXT, DELTAS, ONE_PER_DELTA, USAGE_PER_CHUNK, Reply
from tests.support.loadgen import DONE, ROLE, chunk, plain_answer, sse, usage, usage_chunk


def played(*parts: bytes) -> Reply:
    """Part n arrives at second n."""
    reply = Reply()
    for second, part in enumerate(parts):
        reply.feed(float(second), part)
    reply.close(float(len(parts)))
    return reply


def test_role_only_and_empty_chunks_are_not_the_first_token():
    reply = played(
        ROLE, chunk({"content": None}), chunk({"content": "Hi"}), chunk({}, "stop") + DONE
    )
    assert [arrival.at for arrival in reply.arrivals] == [2.0]
    assert reply.failure() is None
    assert reply.text == "Hi"


def test_reasoning_is_the_first_token_and_content_has_its_own_time():
    for key in ("reasoning_content", "reasoning"):
        reply = played(ROLE, chunk({key: "Hm"}), chunk({"content": "Yes"}), DONE)
        assert reply.arrivals[0].at == 1.0
        assert reply.first_content_at == 2.0
        assert reply.text == "Yes"


def test_tool_call_is_a_token_too():
    call = {"index": 0, "function": {"name": "look_up", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a"'}}
    reply = played(chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), DONE)
    assert [arrival.at for arrival in reply.arrivals] == [0.0, 1.0]
    assert reply.text == ""
    assert reply.failure() is None


def test_text_completions_are_read_as_well():
    reply = played(sse({"choices": [{"text": "one"}]}), DONE)
    assert reply.text == "one"


def test_usage_only_last_chunk_changes_no_time():
    reply = played(chunk({"content": "a"}), chunk({}, "stop"), usage_chunk(100, 1, 64), DONE)
    assert [arrival.at for arrival in reply.arrivals] == [0.0]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens) == (100, 64)


def test_silent_engine_has_no_cached_tokens_rather_than_zero():
    reply = played(chunk({"content": "a"}), usage_chunk(100, 1), DONE)
    assert reply.usage is not None
    assert reply.usage.cached_tokens is None


def test_deltas_of_one_read_are_one_arrival():
    reply = played(chunk({"content": "a"}) + chunk({"content": "b"}), chunk({"content": "c"}), DONE)
    assert [arrival.deltas for arrival in reply.arrivals] == [2, 1]


def test_tokens_are_one_per_delta_when_the_total_says_so():
    # 4 tokens for 3 deltas: the end token has no text.
    parts = [chunk({"content": text}) for text in ("a", "b", "c")]
    assert played(*parts, usage_chunk(5, 4) + DONE).tokens() == ([1, 1, 1], ONE_PER_DELTA)


def test_several_tokens_per_chunk_are_shared_out_by_text_and_sum_to_the_total():
    parts = [chunk({"content": "x" * n}) for n in (40, 20, 40)]
    assert played(*parts, usage_chunk(5, 10) + DONE).tokens() == ([4, 2, 4], BY_TEXT)


def test_running_usage_makes_tokens_per_chunk_exact():
    parts = [
        chunk({"content": "xxxxxxxxxx"}, usage=usage(5, 3)),
        chunk({"content": "y"}, usage=usage(5, 4)),
        chunk({"content": "zz"}, usage=usage(5, 9)),
    ]
    assert played(*parts, DONE).tokens() == ([3, 1, 5], USAGE_PER_CHUNK)


def test_without_usage_deltas_count():
    assert played(chunk({"content": "a"}), chunk({"content": "b"}), DONE).tokens() == (
        [1, 1],
        DELTAS,
    )


def test_error_after_tokens_is_a_failure():
    reply = played(chunk({"content": "a"}), sse({"error": {"message": "out of memory"}}), DONE)
    failure = reply.failure()
    assert failure is not None
    assert failure[0] == "error_event"
    assert "out of memory" in failure[1]


def test_every_spelling_of_an_error_event_is_one():
    for event in (
        sse({"error": "text"}),
        sse({"object": "error", "message": "old vLLM"}),
        b"event: error\ndata: whatever\n\n",
    ):
        failure = played(chunk({"content": "a"}), event, DONE).failure()
        assert failure is not None
        assert failure[0] == "error_event"


def test_error_null_is_none():
    assert played(chunk({"content": "a"}, error=None), DONE).failure() is None


def test_stream_without_an_end_is_incomplete():
    failure = played(chunk({"content": "a"})).failure()
    assert failure is not None
    assert failure[0] == "incomplete"


def test_finish_reason_is_an_end_where_done_is_not_sent():
    assert played(chunk({"content": "a"}, "stop")).failure() is None


def test_answer_without_a_token_is_empty():
    failure = played(ROLE, chunk({}, "stop") + DONE).failure()
    assert failure is not None
    assert failure[0] == "empty"


def test_event_that_is_no_json_is_broken():
    failure = played(b"data: <html>\n\n", DONE).failure()
    assert failure is not None
    assert failure[0] == "broken"


WORDS = ["water", "straße", "水", "river"]
STREAM = plain_answer(WORDS, prompt=40, cached=32)


@settings(deadline=None)
@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=60))
def test_any_cutting_gives_the_same_text_usage_and_token_count(places):
    ends = sorted({*places, 0, len(STREAM)})
    reply = played(*(STREAM[a:b] for a, b in itertools.pairwise(ends)))
    tokens, _ = reply.tokens()
    assert reply.text.split() == WORDS
    assert sum(tokens) == len(WORDS)
    assert sum(arrival.deltas for arrival in reply.arrivals) == len(WORDS)
    assert reply.failure() is None
    assert reply.usage is not None
    assert reply.usage.cached_tokens == 32
    assert reply.finish_reason == "length"


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 2000))
def test_shared_out_tokens_are_never_negative_and_lose_none(lengths, total):
    parts = [chunk({"content": "x" * length}) for length in lengths]
    tokens, source = played(*parts, usage_chunk(5, total) + DONE).tokens()
    assert min(tokens) >= 0
    assert tokens[0] >= 1
    assert source == ONE_PER_DELTA or sum(tokens) == total
