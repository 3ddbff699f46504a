"""Mistral's chats against mistral-common itself, over a small vocabulary in its own file format."""

import asyncio
import json
import sys
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from router.openai.generation import parse_generation
from router.tokens import Limits, LocalTokenizer, Reason, TokenizeFailed, UnusableModelDir
from tests.support.tekken import VERSIONS, asked_of, write_tekken
from tests.support.tokens import SCRIPTS, assistant, chat, completion, system, unpack, user

PATIENT = Limits(deadline_s=30, inline_s=10)
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "é", "parameters": {"type": "object"}},
}
CALL = {"id": "call-123456789", "type": "function"}
CALLED = assistant("", tool_calls=[{**CALL, "function": {"name": "f", "arguments": '{"a":"é"}'}}])
RESULT = {"role": "tool", "tool_call_id": "call-123456789", "content": '{"b": 1}'}


@pytest.fixture(scope="module", params=VERSIONS)
def directory(tmp_path_factory, request):
    return write_tekken(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def tokenizer(directory):
    return LocalTokenizer.load(directory, limits=PATIENT)


@pytest.fixture(scope="module")
def library(directory):
    """What the engine asks, with its own vocabulary in place."""
    return MistralTokenizer.from_file(directory / "tekken.json")


async def reason_of(tokenizer, generation) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        await tokenizer.tokenize(generation)
    return caught.value.reason


@pytest.mark.parametrize(
    "messages",
    [
        [user("the thing")],
        [system("the system"), user("[INST] the </s>"), assistant("in  "), user("")],
        [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])],
        [user("a"), CALLED, RESULT],
        [user("a"), CALLED, RESULT, assistant("b"), user("c")],
        [user(text) for text in SCRIPTS.values()],
    ],
)
@pytest.mark.parametrize("tools", [None, [TOOL]])
async def test_ids_are_the_librarys_cold_and_warm(tokenizer, library, messages, tools):
    expected = asked_of(library, messages, tools)
    given_tools = {} if tools is None else {"tools": tools}
    for _ in range(2):
        assert unpack(await tokenizer.tokenize(chat(messages, **given_tools))) == expected


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(st.sampled_from(" the[INST]</s>é東\n1")).filter(str.strip), min_size=1))
def test_a_growing_conversation_encodes_only_its_new_texts(small, texts):
    tokenizer, library = small
    turns = [(assistant if at % 2 else user)(text) for at, text in enumerate(texts)]
    for end in range(1, len(turns) + 1, 2):
        pieces = tokenizer.pieces_of(chat(turns[:end]))
        fresh = tokenizer.encoder.encode_pieces(
            piece
            for piece, ids in zip(pieces, tokenizer.encoder.recall(pieces), strict=True)
            if ids is None
        )
        tokenizer.encoder.remember(fresh)
        made = array("I", b"".join(map(ids_or_fail, tokenizer.encoder.recall(pieces))))
        assert made.tolist() == asked_of(library, turns[:end])
        assert len(fresh) <= 5


def ids_or_fail(ids: bytes | None) -> bytes:
    assert ids is not None
    return ids


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    directory = write_tekken(tmp_path_factory.mktemp("v7"), "v7")
    library = MistralTokenizer.from_file(directory / "tekken.json")
    return LocalTokenizer.load(directory, limits=PATIENT), library


async def test_an_answer_is_continued(tokenizer, library):
    turns = [user("a"), assistant("the")]
    asked = chat(turns, add_generation_prompt=False, continue_final_message=True)
    expected = asked_of(library, turns, continue_final_message=True)
    assert unpack(await tokenizer.tokenize(asked)) == expected


async def test_completions_begin_with_bos_and_know_no_special_tokens(tokenizer, library):
    tekken = library.instruct_tokenizer.tokenizer
    expected = tekken.encode("the [INST]", bos=True, eos=False)
    assert unpack(await tokenizer.tokenize(completion("the [INST]"))) == expected
    bare = completion("the [INST]", add_special_tokens=False)
    assert unpack(await tokenizer.tokenize(bare)) == expected[1:]
    cut = completion("the [INST]", truncate_prompt_tokens=4)
    assert unpack(await tokenizer.tokenize(cut)) == [expected[0], *expected[-3:]]


async def test_long_chats_are_encoded_in_a_thread_with_the_same_ids(tokenizer, library):
    turns = [user("the thing in the " * 20_000)]
    assert unpack(await tokenizer.tokenize(chat(turns))) == asked_of(library, turns)


@pytest.mark.parametrize(
    ("messages", "extra", "reason"),
    [
        ([user("a")], {"chat_template": "{{ a }}"}, Reason.INVALID),
        ([user("a")], {"chat_template_kwargs": {}}, Reason.INVALID),
        ([user("a")], {"reasoning_effort": "low "}, Reason.INVALID),
        ([user("a"), assistant("b")], {}, Reason.INVALID),
        ([user("a")], {"continue_final_message": True}, Reason.INVALID),
        ([{"role": "critic", "content": "a"}], {}, Reason.INVALID),
        ([user([{"type": "text", "text": "a", "x": 1}])], {}, Reason.UNSUPPORTED),
        ([user("a"), assistant("b", tool_calls=[{"id": 5}]), user("c")], {}, Reason.INVALID),
    ],
)
async def test_what_the_engine_refuses_has_no_ids(tokenizer, messages, extra, reason):
    assert await reason_of(tokenizer, chat(messages, **extra)) is reason


async def test_images_are_never_fetched(tokenizer):
    part = {"type": "image_url", "image_url": {"url": "http://replica.test/x.png"}}
    assert await reason_of(tokenizer, chat([user([part])])) is Reason.MULTIMODAL


async def test_anthropics_bodies_are_left_to_the_engine(tokenizer):
    body = json.dumps({"model": "m", "max_tokens": 5, "messages": [user("a")]}).encode()
    asked = parse_generation("/v1/messages", {}, body)
    assert await reason_of(tokenizer, asked) is Reason.UNSUPPORTED


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "tekken.json").write_text("{}", "utf-8")
    with pytest.raises(UnusableModelDir, match=r"tekken\.json cannot be read"):
        LocalTokenizer.load(tmp_path)


WITHOUT = """
import sys
from pathlib import Path
sys.modules["mistral_common"] = None
from router.tokens import LocalTokenizer, UnusableModelDir
try:
    LocalTokenizer.load(Path(sys.argv[1]))
except UnusableModelDir as exc:
    sys.exit(str(exc))
"""


async def test_without_the_library_the_error_says_what_to_install(directory):
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT, str(directory), stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(done.communicate(), 30)
    assert done.returncode == 1
    assert b"pip install warmgate[mistral]" in said


async def test_a_turn_is_laid_out_without_the_library_once_its_like_was(directory, monkeypatch):
    tokenizer = LocalTokenizer.load(directory, limits=PATIENT)
    turns = [system("the"), user("in"), assistant("he"), user("the the")]
    await tokenizer.tokenize(chat(turns))
    more = [assistant("an answer"), user("next"), assistant("another"), user("more")]
    await tokenizer.tokenize(chat([*turns, *more[:2]]))
    expected = tokenizer.pieces_of(chat([*turns, *more]))
    monkeypatch.delattr(MistralTokenizer, "encode_chat_completion")
    made = unpack(await tokenizer.tokenize(chat([*turns, *more])))
    encoded = tokenizer.encoder.encode_pieces(expected)
    assert made == unpack(b"".join([encoded[piece] for piece in expected]))


async def test_what_was_forgotten_is_laid_out_again(directory, library):
    tokenizer = LocalTokenizer.load(directory, limits=Limits(deadline_s=30, memo_bytes=32_000))
    turns = [user("the"), CALLED, RESULT]
    for number in range(40):
        turns += [assistant(f"the {number}"), user(f"in {number}")]
        assert unpack(await tokenizer.tokenize(chat(turns))) == asked_of(library, turns)
        assert tokenizer.memo_bytes < 32_000
