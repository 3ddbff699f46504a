import asyncio
import json
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from router.openai.generation import parse_generation
from router.tokens import Limits, LocalTokenizer, Reason, TokenizeFailed
from router.tokens.encoder import LITERAL
from tests.support.tokens import (
    assistant,
    byte_level_tokenizer,
    chat,
    completion,
    short_beginnings,
    system,
    unpack,
    user,
    write_model_dir,
)

DATA = Path(__file__).parents[2] / "data" / "tokens"
PATIENT = Limits(deadline_s=30, inline_s=10)
FORMAT = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>")
RECORDED = [
    json.loads(line) for line in (DATA / "vllm-0.32-harmony.jsonl").read_bytes().splitlines()
]
"""Bodies, and the text of the prompts that vLLM made of them on 2026-01-02."""


@pytest.fixture(scope="module", autouse=True)
def short():
    with short_beginnings():
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    added = [AddedToken(text, special=True, normalized=False) for text in FORMAT]
    directory = write_model_dir(tmp_path_factory.mktemp("model"), byte_level_tokenizer(added))
    (directory / "config.json").write_text('{"model_type": "gpt_oss"}', "utf-8")
    day = datetime(2026, 1, 2, 3, 4)
    return LocalTokenizer.load(directory, limits=PATIENT, clock=lambda: day)


def prompt_text(tokenizer, generation) -> str:
    return "".join(tokenizer.pieces_of(generation)).replace(LITERAL, "")


async def reason_of(tokenizer, generation) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        await tokenizer.tokenize(generation)
    return caught.value.reason


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_chats_are_written_as_vllm_writes_them(tokenizer, number):
    case = RECORDED[number]
    body = json.dumps(case["body"]).encode()
    assert (
        prompt_text(tokenizer, parse_generation("/v1/chat/completions", {}, body)) == case["text"]
    )


async def test_special_tokens_in_a_message_are_text(tokenizer):
    said = unpack(await tokenizer.tokenize(chat([user("a<|end|>b")])))
    plain = unpack(await tokenizer.tokenize(chat([user("a b")])))
    ends = tokenizer.encoder.encode_pieces(["<|end|>"])["<|end|>"]
    assert said.count(unpack(ends)[0]) == plain.count(unpack(ends)[0])
    assert len(said) > len(plain)


async def test_special_tokens_in_a_completion_are_special(tokenizer):
    [end] = unpack(tokenizer.encoder.encode_pieces(["<|end|>"])["<|end|>"])
    assert end in unpack(await tokenizer.tokenize(completion("a<|end|>b")))


async def test_a_warm_memo_gives_the_same_ids(tokenizer):
    asked = chat([system("Be brief."), user("Hi"), assistant("Hello"), user("<|start|>?")])
    assert await tokenizer.tokenize(asked) == await tokenizer.tokenize(asked)
    assert all(ids is not None for ids in tokenizer.encoder.recall(tokenizer.pieces_of(asked)))


def test_reasoning_goes_once_it_is_answered(tokenizer):
    turns = [user("1"), assistant("2", reasoning="old"), user("3")]
    assert "old" not in prompt_text(tokenizer, chat(turns))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns += [assistant("", reasoning_content="new", tool_calls=[call])]
    assert "analysis<|message|>new" in prompt_text(tokenizer, chat(turns))


def test_schemas_are_shown_as_types(tokenizer):
    properties = {
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "at": {"type": ["integer", "null"], "title": "Hour"},
        "who": {"type": "array", "items": {"type": "object", "properties": {}}, "nullable": True},
    }
    parameters = {"type": "object", "properties": properties, "required": ["at"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    text = prompt_text(tokenizer, chat([user("Hi")], tools=[tool]))
    assert 'unit?: "c" | "f", // default: c\n// Hour\n//\nat: number | null,\n' in text
    assert "who?: {\n    }[] | null,\n}) => any;" in text


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"reasoning_effort": "none"}, Reason.INVALID),
        ({"truncate_prompt_tokens": 5}, Reason.UNSUPPORTED),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, Reason.UNSUPPORTED),
    ],
)
async def test_what_is_not_followed_fails_closed(tokenizer, extra, reason):
    assert await reason_of(tokenizer, chat([user("Hi")], **extra)) is reason


@pytest.mark.parametrize(
    "schema", [{"oneOf": []}, {"type": "number", "default": 0.5}, {"type": [], "enum": [1]}]
)
async def test_odd_schemas_fail_closed(tokenizer, schema):
    parameters = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert await reason_of(tokenizer, chat([user("Hi")], tools=[tool])) is Reason.UNSUPPORTED


async def test_images_are_multimodal(tokenizer):
    part = {"type": "image_url", "image_url": {"url": "http://replica.test/x.png"}}
    assert await reason_of(tokenizer, chat([user([part])])) is Reason.MULTIMODAL


IDS = ("c1", "c2")
SAID = st.one_of(
    st.builds(user, st.sampled_from(["a", "<|end|>", ""])),
    st.builds(system, st.sampled_from(["b", "c"])),
    st.builds(
        assistant,
        st.sampled_from(["", "d"]),
        reasoning=st.sampled_from([None, "why"]),
        tool_calls=st.lists(
            st.builds(
                lambda name, call: {"id": call, "function": {"name": name, "arguments": "{}"}},
                st.sampled_from("fg"),
                st.sampled_from(IDS),
            ),
            max_size=2,
        ),
    ),
    st.builds(
        lambda call: {"role": "tool", "tool_call_id": call, "content": "e"}, st.sampled_from(IDS)
    ),
)


def by_the_rules(tokenizer, messages) -> str:
    """The prompt of each message alone, in a row, with what the format says of all of them."""
    start = "<|start|>"
    alone = [prompt_text(tokenizer, chat([user("x"), one])).split(start) for one in messages]
    top = messages[0]["role"] == "system"
    head = prompt_text(tokenizer, chat([messages[0] if top else user("x")])).split(start)
    turns = [turn for said in alone[1 if top else 0 :] for turn in said[3:-1]]
    calls = [call for one in messages for call in one.get("tool_calls", [])]
    names = {call["id"]: call["function"]["name"] for call in calls}
    results = iter([one["tool_call_id"] for one in messages if one["role"] == "tool"])
    turns = [
        turn.replace("functions.", f"functions.{names.get(next(results), '')}", 1)
        if turn.startswith("functions.")
        else turn
        for turn in turns
    ]
    finals = [at for at, turn in enumerate(turns) if "<|channel|>final" in turn]
    kept = [
        turn
        for at, turn in enumerate(turns)
        if not finals or at > finals[-1] or "<|channel|>analysis" not in turn
    ]
    return start.join([*(head[:3] if top else head[:2]), *kept, "assistant"])


@settings(deadline=None, max_examples=30)
@given(st.lists(SAID, min_size=1, max_size=8), st.lists(st.integers(1, 8), max_size=3))
def test_any_split_into_turns_gives_the_same_prompt(tokenizer, said, ends):
    """The memo is warm with whatever came before, in this example and in all others."""
    for end in [*ends, len(said)]:
        asked = chat(said[:end])
        expected = by_the_rules(tokenizer, said[:end])
        assert prompt_text(tokenizer, asked) == expected
        warm = asyncio.run(tokenizer.tokenize(asked))
        pieces = tokenizer.pieces_of(asked)
        encoded = tokenizer.encoder.encode_pieces(pieces)
        assert warm == b"".join([encoded[piece] for piece in pieces])


@pytest.mark.parametrize("odd", [[], {}])
async def test_ids_of_calls_that_are_no_text_are_refused(tokenizer, odd):
    result = {"role": "tool", "tool_call_id": odd, "content": "a"}
    assert await reason_of(tokenizer, chat([user("a"), result])) is Reason.INVALID
    call = {"id": odd, "function": {"name": "f", "arguments": "{}"}}
    called = assistant("", tool_calls=[call])
    assert await reason_of(tokenizer, chat([user("a"), called])) is Reason.INVALID
