"""Long data strings are passed over; all else is read as if the body were parsed whole."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.openai import skim
from router.openai.generation import parse_generation
from router.openai.skim import LONG_BYTES, MOST_STRINGS, SKIM_BYTES, without_data

PATH = "/v1/chat/completions"
IMAGE = "data:image/png;base64," + "iVBORw0K" * (SKIM_BYTES // 8)


def body_of(url: str, **more: object) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
    return json.dumps({"messages": [{"role": "user", "content": parts}], **more}).encode()


def test_what_routing_reads_is_what_the_whole_body_says():
    body = body_of(IMAGE, model="m", stream=True, cache_salt="s", session_id="a")
    found = parse_generation(PATH, {}, body)
    assert found.is_skimmed
    assert found.body is body
    assert (found.model, found.stream, found.salt, found.session) == ("m", True, "s", "a")


def test_a_text_of_that_length_stays_whole():
    text = "What is this? " * (SKIM_BYTES // 10)
    found = parse_generation(PATH, {}, body_of(text, model="m"))
    assert not found.is_skimmed
    assert len(bytes(found.fields.messages)) > SKIM_BYTES


def test_short_bodies_and_short_strings_are_parsed_whole():
    assert without_data(body_of("data:" + "a" * LONG_BYTES)) is None
    many = json.dumps({"all": ["data:" + "a" * 1000] * (SKIM_BYTES // 1000)}).encode()
    assert without_data(many) is None


def test_no_more_strings_are_looked_at_than_is_worth_it():
    body = json.dumps({"many": ["a"] * MOST_STRINGS, "url": IMAGE}).encode()
    assert without_data(body) is None


@pytest.mark.parametrize("ending", ["\\", "\\\\", '"', 'a"b', '\\"', "\\\\\\", "é"])
def test_escaped_quotes_end_no_string(ending):
    body = json.dumps({"url": IMAGE + ending, "model": ending}).encode()
    found = without_data(body)
    assert found is not None
    assert msgspec.json.decode(found) == {"url": "data:", "model": ending}


def test_what_is_no_json_is_refused_all_the_same():
    for broken in (body_of(IMAGE, model="m")[:-1], b'{"model": "m", "url": "' + IMAGE.encode()):
        with pytest.raises(InvalidRequest, match="not valid JSON"):
            parse_generation(PATH, {}, broken)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='"\\a:d\n{}é') | st.just("DATA"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\a'), inner, max_size=4),
    max_leaves=12,
)


def filled(value, data):
    if isinstance(value, list):
        return [filled(one, data) for one in value]
    if isinstance(value, dict):
        return {key: filled(one, data) for key, one in value.items()}
    return data if value == "DATA" else value


@settings(max_examples=200, deadline=None)
@given(value=VALUES, tail=st.text(alphabet='"\\a', max_size=5), ascii_only=st.booleans())
def test_nothing_but_data_is_passed_over(value, tail, ascii_only):
    data = "data:" + "x" * 40 + tail
    body = json.dumps(filled(value, data), ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skim, "SKIM_BYTES", 0)
        patch.setattr(skim, "LONG_BYTES", 20)
        found = without_data(body)
    assert msgspec.json.decode(body if found is None else found) == filled(
        value, data if found is None else "data:"
    )
    assert (found is not None) == (b'"data:' in body)
