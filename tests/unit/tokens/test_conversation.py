"""Conversations against what vLLM 0.32.0 made of the same bodies.

tests/data/tokens holds its rendered texts, for templates that write down all they are given.
"""

import copy
from pathlib import Path

import pytest

from router.tokens import ChatTemplate, Reason, TokenizeFailed
from router.tokens.conversation import conversation, tool_schemas, without_developer
from router.tokens.prompt import ChatPrompt, read_prompt
from tests.support.tokens import assistant, generation, rows, system, user

DATA = Path(__file__).parents[2] / "data" / "tokens"
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
RECORDED = rows("vllm-0.32-conversations.jsonl")


@pytest.fixture(scope="module")
def templates():
    return {
        name: ChatTemplate((DATA / f"dump-{name}.jinja").read_text("utf-8"), SPECIAL)
        for name in ("string", "parts")
    }


def test_templates_get_the_content_format_that_the_engine_gives_them(templates):
    assert (templates["string"].parts, templates["parts"].parts) == (False, True)


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_rendered_text_is_the_engines(templates, number):
    row = RECORDED[number]
    body = {name: value for name, value in row["body"].items() if name != "model"}
    try:
        prompt = read_prompt(generation("/v1/chat/completions", **body), max_bytes=100_000)
        assert isinstance(prompt, ChatPrompt)
        text = templates[row["template"]].render(prompt, max_chars=100_000)
    except TokenizeFailed:
        assert row.get("refused")
        return
    assert row.get("refused") or text == row["text"]


def one(message: object, *, parts: bool = False) -> dict[str, object]:
    [rebuilt] = conversation([message], parts=parts)
    return rebuilt


def reason_of(message: object) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        one(message)
    return caught.value.reason


def test_parts_become_lines():
    parts = [{"type": "text", "text": "one"}, "two", {"type": "text", "text": ""}]
    assert one(user(parts))["content"] == "one\ntwo"
    assert one(user(parts), parts=True)["content"] == [
        {"type": "text", "text": "one"},
        {"type": "text", "text": "two"},
        {"type": "text", "text": ""},
    ]


def test_no_content_is_empty_content():
    assert one({"role": "user"})["content"] == one(user(None))["content"] == ""
    assert one(user(None), parts=True)["content"] == one(user([]), parts=True)["content"] == []


def test_tool_arguments_become_objects():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1.0]}'}}
    rebuilt = one(assistant(None, tool_calls=[call]))
    assert rebuilt["tool_calls"] == [
        {"id": "1", "function": {"arguments": {"a": [1.0]}, "name": "f"}, "type": "function"}
    ]


@pytest.mark.parametrize("arguments", ["", None, "no json", "[1]", "42", [], {}])
def test_arguments_that_are_no_object_become_an_empty_one(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    rebuilt = one(assistant("", tool_calls=[call]))
    assert rebuilt["tool_calls"] == [{"function": {"arguments": {}, "name": "f"}}]


def test_clients_messages_are_not_changed():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [user([{"type": "text", "text": "a"}]), assistant("b", tool_calls=[call])]
    before = copy.deepcopy(messages)
    conversation(messages, parts=True)
    assert messages == before


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "video_url", "video_url": {"url": "http://replica.test/"}},
        {"image_url": "http://replica.test/x.png"},
        {"type": "text", "text": "x", "uuid": "1"},
        {"type": "file", "file": {}},
    ],
)
def test_what_is_no_text_is_multimodal(part):
    assert reason_of(user([{"type": "text", "text": "look"}, part])) is Reason.MULTIMODAL


@pytest.mark.parametrize(
    "message",
    [
        "Hi",
        None,
        {},
        {"content": "x"},
        {"role": 1, "content": "x"},
        user(5),
        user({"type": "text"}),
        user([5]),
        user([{"type": "text", "text": 5}]),
        user([{"type": "thinking", "thinking": None}]),
        assistant("", tool_calls="f"),
        assistant("", tool_calls=["f"]),
        assistant("", tool_calls=[{"function": "f"}]),
        assistant("", tool_calls=[{"type": "custom", "function": {"name": "f"}}]),
    ],
)
def test_messages_that_the_engine_refuses_are_invalid(message):
    assert reason_of(message) is Reason.INVALID


def test_no_messages_are_invalid():
    with pytest.raises(TokenizeFailed):
        conversation([], parts=False)


def test_deeply_nested_arguments_are_invalid_rather_than_fatal():
    call = {"function": {"name": "f", "arguments": '{"a":' + "[" * 100_000}}
    assert reason_of(assistant("", tool_calls=[call])) is Reason.INVALID


def test_developers_become_the_one_system_message():
    messages = conversation(
        [user("a"), {"role": "developer", "content": "d", "tools": []}, system("s"), system("")],
        parts=False,
    )
    assert without_developer(messages) == [system("d\n\ns"), user("a")]


def test_systems_stay_where_they_are_without_a_developer():
    messages = conversation([user("a"), system("s"), system("t")], parts=False)
    assert without_developer(messages) == messages


def test_tools_are_dumped_as_the_engine_dumps_them():
    tool = {"function": {"parameters": {}, "name": "f", "strict": None, "x": 1}, "y": 2}
    [dumped] = tool_schemas([tool])
    assert list(dumped.items()) == [
        ("type", "function"),
        ("function", {"name": "f", "description": None, "parameters": {}}),
    ]
    assert list(dumped["function"]) == ["name", "description", "parameters"]


@pytest.mark.parametrize("tool", [None, {}, {"function": None}, {"function": {"name": 1}}])
def test_tools_without_a_name_are_invalid(tool):
    with pytest.raises(TokenizeFailed) as caught:
        tool_schemas([tool])
    assert caught.value.reason is Reason.INVALID
