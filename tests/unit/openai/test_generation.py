import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.openai import fields as field
from router.openai.generation import Generation, Kind, kind_of, parse_generation

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def parse(path=CHAT, headers=None, session_headers=("x-session-id",), **body) -> Generation:
    return parse_generation(path, headers or {}, json.dumps(body).encode(), session_headers)


def refusal(path: str, body: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_generation(path, {}, body)
    assert caught.value.status == 400
    return caught.value.message


def test_chat_is_read_and_its_body_kept_to_the_byte():
    body = b'{ "model":"m", "messages" : [ {"role":"user"} ],\n "stream":true, "odd": [1.50] }'
    generation = parse_generation(CHAT, {}, body)
    assert generation.body is body
    assert (generation.model, generation.stream, generation.kind) == ("m", True, Kind.CHAT)
    assert bytes(generation.fields.messages) == b'[ {"role":"user"} ]'
    assert (generation.session, generation.salt) == (None, None)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", Kind.CHAT),
        ("/team-a/v1/chat/completions/", Kind.CHAT),
        ("/v1/chat/completions?trace=1", Kind.CHAT),
        ("/v1/completions", Kind.COMPLETION),
        ("/v1/embeddings", Kind.OTHER),
        ("/v1/responses", Kind.OTHER),
    ],
)
def test_kind_comes_from_the_end_of_the_path(path, kind):
    assert kind_of(path) is kind


@pytest.mark.parametrize("body", [b"", b"   ", b"{", b"{'model'}", b'{"model": NaN}', b"\xff\xfe{"])
def test_what_is_not_json_is_refused(body):
    assert "not valid JSON" in refusal(CHAT, body)


def test_refusal_of_broken_json_names_the_position():
    assert "byte 11" in refusal(CHAT, b'{"model": "\x01"}')
    assert "byte 14" in refusal(CHAT, b'{"model": "m" "x": 1}')


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null"])
def test_what_is_no_object_is_refused(body):
    assert "must be a JSON object" in refusal(CHAT, body)


def test_deep_nesting_is_refused_rather_than_fatal():
    assert "nested too deeply" in refusal(CHAT, b'{"x":' + b"[" * 200_000)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "'model' is missing"),
        ("", "not empty"),
        (" ", "not empty"),
        (7, "must be a string"),
        (["m"], "must be a string"),
    ],
)
def test_a_model_that_names_nothing_is_refused(value, words):
    assert words in refusal(CHAT, json.dumps({"model": value, "messages": MESSAGES}).encode())
    assert "'model' is missing" in refusal(CHAT, b'{"messages": []}')


@pytest.mark.parametrize(
    ("path", "prompt", "words"),
    [
        (CHAT, {}, "'messages' is missing"),
        (CHAT, {"messages": None}, "'messages' is missing"),
        (CHAT, {"messages": "Hi"}, "must be a list"),
        (CHAT, {"messages": {"role": "user"}}, "must be a list"),
        (CHAT, {"prompt": "Hi"}, "'messages' is missing"),
        (COMPLETION, {}, "'prompt' is missing"),
        (COMPLETION, {"prompt": None}, "'prompt' is missing"),
        (COMPLETION, {"prompt": 3}, "must be a string"),
        (COMPLETION, {"prompt": {"text": "x"}}, "must be a string"),
    ],
)
def test_a_body_without_a_prompt_is_refused(path, prompt, words):
    assert words in refusal(path, json.dumps({"model": "m", **prompt}).encode())


@pytest.mark.parametrize(
    "prompt",
    [{"prompt": ""}, {"prompt": "Hi"}, {"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": []}],
)
def test_any_prompt_of_a_known_shape_is_routed(prompt):
    assert parse(COMPLETION, model="m", **prompt).kind is Kind.COMPLETION


def test_prompt_embeds_stand_in_for_a_prompt():
    assert parse(COMPLETION, model="m", prompt_embeds="AAAA").model == "m"


def test_other_paths_need_only_a_model():
    assert parse("/v1/embeddings", model="m", input="x").kind is Kind.OTHER


@settings(deadline=None)
@given(
    odd=st.dictionaries(
        st.sampled_from(sorted(set(field.GenerationFields.__struct_fields__) - {"model"}))
        | st.text(),
        json_values,
    )
)
def test_odd_types_in_other_fields_never_make_a_refusal(odd):
    odd |= {"model": "m", "messages": MESSAGES}
    body = json.dumps(odd).encode()
    generation = parse_generation(CHAT, {}, body)
    assert generation.body == body
    generation.fields.max_output_tokens()
    generation.fields.wants_usage()
    generation.fields.reports_reused()


@pytest.mark.parametrize(
    ("value", "streams"),
    [
        (True, True),
        (1, True),
        ("yes", True),
        ("TRUE", True),
        (False, False),
        (0, False),
        ("no", False),
        (None, False),
        (2, False),
        ([True], False),
        ("perhaps", False),
    ],
)
def test_stream_is_read_as_the_engine_reads_it(value, streams):
    assert parse(model="m", messages=MESSAGES, stream=value).stream is streams


def test_the_last_of_two_equal_keys_counts():
    body = b'{"model":"a","messages":[],"model":"b","stream":true,"stream":false}'
    generation = parse_generation(CHAT, {}, body)
    assert (generation.model, generation.stream) == ("b", False)


def test_session_comes_from_configured_headers_first():
    body = {"model": "m", "messages": MESSAGES, "prompt_cache_key": "key", "session_id": "id"}
    headers = {"x-conversation": "c1", "x-session-id": "s1"}
    assert parse(headers=headers, **body).session == "s1"
    assert parse(headers=headers, session_headers=("x-conversation",), **body).session == "c1"
    assert parse(headers=headers, session_headers=(), **body).session == "key"
    del body["prompt_cache_key"]
    assert parse(headers={"x-session-id": " "}, **body).session == "id"


def test_who_asks_is_no_session():
    headers = {"x-request-id": "r", "authorization": "Bearer k", "x-forwarded-for": "10.0.0.1"}
    body = {"user": "u", "request_id": "r", "previous_response_id": "p"}
    assert parse(headers=headers, model="m", messages=MESSAGES, **body).session is None


def test_a_session_of_another_type_is_none():
    assert parse(model="m", messages=MESSAGES, session_id=5, prompt_cache_key=[""]).session is None


def test_salt_is_the_cache_salt():
    assert parse(model="m", messages=MESSAGES, cache_salt="tenant-a").salt == "tenant-a"
    assert parse(model="m", messages=MESSAGES, cache_salt="").salt is None
    assert parse(model="m", messages=MESSAGES, cache_salt={"a": 1}).salt is None


def test_output_limit_prefers_the_newer_field():
    fields = parse(model="m", messages=MESSAGES, max_tokens=5, max_completion_tokens=7).fields
    assert fields.max_output_tokens() == 7
    assert parse(model="m", messages=MESSAGES, max_tokens=5).fields.max_output_tokens() == 5
    assert parse(model="m", messages=MESSAGES, max_tokens=True).fields.max_output_tokens() is None


def test_usage_is_wanted_only_when_it_is_asked_for():
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    assert parse(**body, stream_options={"include_usage": True}).fields.wants_usage()
    assert not parse(**body, stream_options={"include_usage": False}).fields.wants_usage()
    assert not parse(**body, stream_options=[]).fields.wants_usage()
    assert not parse(**body).fields.wants_usage()


def test_a_small_field_that_is_huge_is_not_decoded():
    fields = parse(model="m", messages=MESSAGES, stream_options=[[]] * 9000).fields
    assert field.scalar(fields.stream_options) is None
    assert field.is_given(fields.stream_options)


@pytest.mark.parametrize(
    ("extra", "reports"),
    [
        ({"kv_cache_report_mode": "full"}, True),
        ({"kv_cache_report_mode": "incremental"}, False),
        ({"other": "full"}, False),
        (["kv_cache_report_mode"], False),
        (None, False),
    ],
)
def test_a_request_may_ask_for_reports_of_blocks_that_are_reused(extra, reports):
    assert parse(model="m", messages=MESSAGES, vllm_xargs=extra).fields.reports_reused() is reports
    assert not parse(model="m", messages=MESSAGES).fields.reports_reused()
