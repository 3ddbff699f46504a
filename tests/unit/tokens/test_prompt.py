import msgspec
import pytest

from router.tokens import Reason, TokenizeFailed
from router.tokens.prompt import (
    ChatPrompt,
    IdsPrompt,
    TextPrompt,
    Truncation,
    adds_special_tokens,
    read_prompt,
    read_truncation,
)
from tests.support.tokens import chat, completion, generation, unpack, user

LIMIT = 10_000


def read(asked, max_bytes=LIMIT):
    return read_prompt(asked, max_bytes)


def reason_of(asked, max_bytes=LIMIT) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        read_prompt(asked, max_bytes)
    return caught.value.reason


@pytest.mark.parametrize(
    ("prompt", "text"), [("Hi", "Hi"), ("", ""), (["a", "b"], "a"), ([" x"], " x")]
)
def test_text_prompts_and_the_first_of_several(prompt, text):
    assert read(completion(prompt)) == TextPrompt(text)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([1, 2, 4294967295], [1, 2, 4294967295]),
        ([[5, 6], [7]], [5, 6]),
        ([[]], []),
        ([], []),
        (list(range(1000)), list(range(1000))),
    ],
)
def test_ids_pass_through(prompt, ids):
    found = read(completion(prompt))
    assert isinstance(found, IdsPrompt)
    assert unpack(found.ids) == ids


def test_prompts_after_the_first_are_not_looked_at():
    assert read(completion(["a", 1, None])) == TextPrompt("a")
    assert unpack(read(completion([[1], "b"])).ids) == [1]


@pytest.mark.parametrize(
    "prompt", [[-1], [4294967296], [1.5], [True], [None], [{}], [1, "a"], [[[1]]], [["a"]]]
)
def test_ids_that_are_no_ids_are_invalid(prompt):
    assert reason_of(completion(prompt)) is Reason.INVALID


def test_ids_may_come_in_the_fields_of_other_paths():
    assert unpack(read(generation("/generate", input_ids=[1, 2])).ids) == [1, 2]
    assert unpack(read(generation("/inference/v1/generate", token_ids=[3])).ids) == [3]
    assert reason_of(generation("/v1/responses", input="Hi")) is Reason.UNSUPPORTED


def test_fields_that_change_the_prompt_in_ways_we_do_not_know():
    assert reason_of(completion("a", suffix="b")) is Reason.UNSUPPORTED
    assert reason_of(completion("a", prompt_embeds="AAAA")) is Reason.MULTIMODAL
    assert reason_of(chat([user("a")], chat_template_kwargs={"tools": []})) is Reason.UNSUPPORTED


def test_chat_defaults():
    assert read(chat([user("Hi")])) == ChatPrompt([user("Hi")], None, {}, True, False)


def test_chat_flags_are_read_as_the_engine_reads_them():
    prompt = read(chat([user("Hi")], add_generation_prompt="no", continue_final_message=1))
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (False, True)
    assert reason_of(chat([user("Hi")], add_generation_prompt="maybe")) is Reason.INVALID


def test_template_variables_are_merged_in_the_engines_order():
    asked = chat(
        [user("Hi")],
        documents=[{"title": "t"}],
        reasoning_effort="low",
        chat_template_kwargs={"documents": [], "x": 1, "unset": None, "default": "auto"},
    )
    assert read(asked).variables == {
        "documents": [{"title": "t"}],
        "reasoning_effort": "low",
        "enable_thinking": True,
        "x": 1,
    }


@pytest.mark.parametrize(
    ("effort", "given", "enabled"),
    [("none", {}, False), ("high", {}, True), ("high", {"enable_thinking": False}, False)],
)
def test_reasoning_effort_switches_thinking_unless_it_is_given(effort, given, enabled):
    asked = chat([user("Hi")], reasoning_effort=effort, chat_template_kwargs=given)
    assert read(asked).variables["enable_thinking"] is enabled


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": {}},
        {"documents": "d"},
        {"documents": [{"title": 1}]},
        {"reasoning_effort": 3},
        {"chat_template_kwargs": []},
    ],
)
def test_chat_fields_that_the_engine_refuses_are_invalid(fields):
    assert reason_of(chat([user("Hi")], **fields)) is Reason.INVALID


def test_what_is_too_long_is_not_decoded():
    assert reason_of(completion("x" * 101), max_bytes=100) is Reason.TOO_LARGE
    assert reason_of(chat([user("x" * 101)]), max_bytes=100) is Reason.TOO_LARGE
    assert reason_of(completion([1] * 101), max_bytes=100) is Reason.TOO_LARGE


def test_special_tokens_are_added_to_completions_only():
    assert adds_special_tokens(completion("a"))
    assert not adds_special_tokens(chat([user("a")]))
    assert not adds_special_tokens(completion("a", add_special_tokens=False))
    assert adds_special_tokens(chat([user("a")], add_special_tokens=True))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"truncate_prompt_tokens": None}, None),
        ({"truncate_prompt_tokens": -1}, None),
        ({"truncate_prompt_tokens": 5}, Truncation(5)),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, Truncation(5, "right")),
        ({"truncation_side": "right"}, None),
    ],
)
def test_truncation(fields, expected):
    assert read_truncation(completion("a", **fields).fields) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"truncate_prompt_tokens": -2},
        {"truncate_prompt_tokens": "5x"},
        {"truncate_prompt_tokens": 5, "truncation_side": "middle"},
    ],
)
def test_truncation_that_the_engine_refuses_is_invalid(fields):
    with pytest.raises(TokenizeFailed):
        read_truncation(completion("a", **fields).fields)


def test_truncation_keeps_the_end_unless_told_otherwise():
    ids = read(completion([1, 2, 3, 4])).ids
    assert unpack(Truncation(3).slice_ids(ids)) == [2, 3, 4]
    assert unpack(Truncation(3, "left").slice_ids(ids)) == [2, 3, 4]
    assert unpack(Truncation(3, "right").slice_ids(ids)) == [1, 2, 3]
    assert unpack(Truncation(9).slice_ids(ids)) == [1, 2, 3, 4]
    assert Truncation(0).slice_ids(ids) == b""


def test_a_body_of_which_something_was_passed_over_has_no_ids():
    asked = msgspec.structs.replace(chat([user("Hi")]), is_skimmed=True)
    assert reason_of(asked) is Reason.TOO_LARGE
