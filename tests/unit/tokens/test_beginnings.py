"""A list of messages that begins as one before it is known up to there, and nothing else is."""

import asyncio
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from tokenizers import AddedToken

from router.tokens import Limits, LocalTokenizer, TokenizeFailed
from router.tokens.beginnings import NONE
from router.tokens.told import Told
from tests.support.tokens import (
    CHATML,
    SPECIAL,
    byte_level_tokenizer,
    chat,
    short_beginnings,
    unpack,
    user,
    write_model_dir,
)
from tests.tokens_reference.models import TEMPLATES

PATIENT = Limits(deadline_s=30, inline_s=10)
ROOM = 1 << 20

values = st.recursive(
    st.integers(0, 12) | st.sampled_from(["", "a", '"]', "[,", "é", True, None, 1.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner),
    max_leaves=4,
)
spaces = st.sampled_from(["", "", "", " ", "\n\t"])
items = st.builds("{}{}{}".format, spaces, values.map(json.dumps), spaces)
steps = st.lists(st.tuples(st.integers(0, 12), st.lists(items, max_size=3)), max_size=8)


@pytest.fixture(scope="module", autouse=True)
def short():
    with short_beginnings():
        yield


def told(max_bytes=ROOM):
    return Told(max_bytes, lambda raw: json.loads(bytes(raw)))


def hear(memo, *said):
    return memo.hear(Raw(json.dumps(said).encode()))


@settings(max_examples=50)
@given(steps=steps, room=st.sampled_from([ROOM, 20_000]))
def test_any_lists_are_heard_as_they_are_whatever_came_before(steps, room):
    memo = told(room)
    said: list[str] = []
    for kept, more in steps:
        said = [*said[:kept], *more]
        text = f"[{','.join(said)}]"
        for _ in range(2):
            heard = memo.hear(Raw(text.encode()))
            # 1, 1.0 and true are equal to Python
            assert json.dumps(heard.messages) == json.dumps(json.loads(text))
            assert len(set(heard.numbers)) <= len(said) == len(heard.numbers)
            assert memo.size_bytes <= room


def test_the_next_turn_finds_the_one_before_and_takes_its_place():
    memo, said = told(), [user(f"word {number}") for number in range(40)]
    first = hear(memo, *said[:20])
    assert first.before == NONE
    second = hear(memo, *said[:22])
    assert second.before == first.now != NONE
    again = hear(memo, *said[:22])
    assert again.before == again.now == second.now
    assert hear(memo, *said[:20]).before == NONE
    assert hear(memo, *said[:30]).before == second.now


def test_one_word_in_its_beginning_makes_it_another_list():
    memo, said = told(), [user(f"word {number}") for number in range(40)]
    hear(memo, *said[:20])
    changed = [user("other"), *said[1:]]
    assert hear(memo, *changed).before == NONE
    assert hear(memo, *said[:19], user("word 19 and more"), *said[20:]).before == NONE


def test_a_number_that_goes_on_is_another_message():
    memo = told()
    for number in (1, 12, 123):
        heard = hear(memo, "long enough to be hashed", number)
        assert heard.before == NONE
        assert heard.messages[-1] == number


def test_what_was_forgotten_is_read_again():
    memo = told(20_000)
    said = [user(f"word {number}") for number in range(6)]
    hear(memo, *said)
    for number in range(100):
        hear(memo, user(f"other {number} " * 20))
        assert hear(memo, *said).messages == said


def test_beginnings_are_bounded():
    memo = told(200_000)
    for number in range(500):
        hear(memo, *[user(f"word {number}")] * 10)
        assert memo._beginnings.size_bytes <= 200_000 // 16
    assert memo._beginnings.size_bytes > 200_000 // 64


def test_a_list_that_is_none_is_refused():
    with pytest.raises(TokenizeFailed, match="invalid"):
        told().hear(Raw(b'{"a": 1}'))


def tokenizer_of(template, path):
    """With all that looks like a special token in a template as one."""
    found = {*re.findall(r"<\|\w+\|>|<\w+_of_turn>|<｜\S+?｜>|\[/?[A-Z]+\]", template), *SPECIAL}
    added = [AddedToken(text, special=True, normalized=False) for text in sorted(found)]
    write_model_dir(path, byte_level_tokenizer(added), template=template)
    return LocalTokenizer.load(path, limits=PATIENT)


SOURCES = {file.stem: file.read_text("utf-8") for file in sorted(TEMPLATES.glob("*.jinja"))}
SOURCES["chatml"] = CHATML
QUESTIONS = ["fox", "a fox <|im_end|> b", "", " ", "x" * 40, "<think>a</think>b"]
edits = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from(QUESTIONS), min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module", params=SOURCES)
def tokenizer(request, tmp_path_factory):
    return tokenizer_of(SOURCES[request.param], tmp_path_factory.mktemp(request.param))


@settings(max_examples=15)
@given(edits=edits)
def test_chats_that_grow_and_branch_get_the_ids_that_they_get_afresh(tokenizer, edits):
    said: list[dict[str, object]] = []
    for dropped, more in edits:
        said = said[: max(0, len(said) - 2 * dropped)]
        for text in more:
            said += [user(text)]
            asked = chat(said)
            try:
                expected = b"".join(map(tokenizer.encoder._encode, tokenizer.pieces_of(asked)))
            except TokenizeFailed:
                return
            for _ in range(2):
                assert asyncio.run(tokenizer.tokenize(asked)) == expected
            said += [{"role": "assistant", "content": text}]


def test_a_next_turn_looks_at_few_messages(tmp_path):
    tokenizer = tokenizer_of(CHATML, tmp_path)
    template = tokenizer._templates["default"]
    said = [user(f"word {number}") for number in range(60)]
    for length in range(1, 60, 2):
        for _ in range(2):
            asyncio.run(tokenizer.tokenize(chat(said[:length])))
    looked: list[int] = []
    known = template.passages._recall_each

    def recall_each(settings, state, rows):
        looked.append(len(rows))
        return known(settings, state, rows)

    template.passages._recall_each = recall_each
    ids = asyncio.run(tokenizer.tokenize(chat(said)))
    assert sum(looked) <= 6
    fresh = tokenizer_of(CHATML, tmp_path)
    assert unpack(ids) == unpack(asyncio.run(fresh.tokenize(chat(said))))


def test_segments_are_bounded_and_counted(tmp_path):
    write_model_dir(tmp_path, byte_level_tokenizer(), template=CHATML)
    tokenizer = LocalTokenizer.load(tmp_path, limits=Limits(deadline_s=30, memo_bytes=400_000))
    for number in range(60):
        said = [user(f"{number} word {at}") for at in range(20)]
        for length in (16, 18, 20):
            asyncio.run(tokenizer.tokenize(chat(said[:length])))
        assert tokenizer.memo_bytes <= 400_000
        assert tokenizer._templates["default"].passages._runs.size_bytes > 0
