"""Mistral's chats in any order of their prompts, over one memo, against mistral-common itself."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from router.tokens import Limits, LocalTokenizer, TokenizeFailed
from tests.support.tekken import VERSIONS, asked_of, write_tekken
from tests.support.tokens import assistant, chat, short_beginnings, system, unpack, user

PATIENT = Limits(deadline_s=30, inline_s=10)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in "fg"
]
TEXTS = st.sampled_from(["the", "in  ", " ", "", "[INST]", '{"a": 1}', "é\n", "</s> the"])
CONTENTS = TEXTS | st.lists(TEXTS, max_size=2).map(
    lambda texts: [{"type": "text", "text": text} for text in texts]
)
IDS = [f"abcdefgh{digit}" for digit in range(3)]


def call(name: str) -> dict[str, object]:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": '{"b":2}'}}


def result(name: str, text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": name, "content": text}


@st.composite
def answers(draw) -> list[dict[str, object]]:
    """What comes until the next user: calls and their results, nearly always all of them."""
    said = []
    for _ in range(draw(st.integers(0, 2))):
        names = IDS[: draw(st.integers(1, 3))]
        text = draw(st.sampled_from(["", "", "the"]))
        said.append(assistant(text, tool_calls=[call(name) for name in names]))
        said += [result(name, draw(TEXTS)) for name in draw(st.permutations(names))]
        if draw(st.integers(0, 9)) == 0:
            said.pop()
    more = draw(st.sampled_from([{}, {}, {}, {"reasoning": "the"}, {"tool_calls": []}]))
    if draw(st.integers(0, 5)):
        said.append(assistant(draw(CONTENTS), **more))
    return said


@st.composite
def conversations(draw) -> list[dict[str, object]]:
    said: list[dict[str, object]] = draw(st.lists(st.builds(system, CONTENTS), max_size=1))
    for _ in range(draw(st.integers(1, 4))):
        said += draw(st.lists(st.builds(user, CONTENTS), min_size=1, max_size=2))
        said += draw(st.just([]) | st.lists(st.builds(system, TEXTS), max_size=1))
        said += draw(answers())
    start: int = draw(st.sampled_from([0, 0, 0, 1]))
    return said[start:]


@pytest.fixture(scope="module", autouse=True)
def short():
    with short_beginnings():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}
    for version in VERSIONS:
        directory = write_tekken(tmp_path_factory.mktemp(version), version)
        library = MistralTokenizer.from_file(directory / "tekken.json")
        made[version] = LocalTokenizer.load(directory, limits=PATIENT), library
    return made


def ids_of(tokenizer, messages, **fields) -> list[int] | None:
    """None: the engine refuses it."""
    try:
        return unpack(asyncio.run(tokenizer.tokenize(chat(messages, **fields))))
    except TokenizeFailed:
        return None


def ids_by(library, messages, tools, effort, *, continues) -> list[int] | None:
    flags = {} if effort is None else {"reasoning_effort": effort}
    try:
        return asked_of(library, messages, tools, continue_final_message=continues, **flags)
    except Exception:  # noqa: BLE001 - the engine answers 400, whatever it is
        return None


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(VERSIONS),
    conversations(),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.sampled_from([None, None, TOOLS[:1], TOOLS]),
    st.sampled_from([None, None, "high"]),
)
def test_any_split_into_turns_gives_the_librarys_ids(models, version, said, ends, tools, effort):
    """The memo is warm with whatever came before, in this example and in all others."""
    tokenizer, library = models[version]
    effort = effort if version == "v15" else None
    for end in [*ends, len(said)]:
        messages = said[:end]
        continues = messages[-1]["role"] == "assistant"
        fields = {} if tools is None else {"tools": tools}
        if effort is not None:
            fields["reasoning_effort"] = effort
        if continues:
            fields |= {"add_generation_prompt": False, "continue_final_message": True}
        expected = ids_by(library, messages, tools, effort, continues=continues)
        assert ids_of(tokenizer, messages, **fields) == expected
