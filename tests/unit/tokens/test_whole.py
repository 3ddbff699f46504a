"""Prompts that came before, word for word."""

from random import Random

import msgspec
import pytest

from router.openai.fields import ABSENT, GenerationFields
from router.openai.generation import parse_generation
from router.tokens import JudgedTokenizer, JudgeLimits, Limits, LocalTokenizer, Verdict
from router.tokens.whole import IRRELEVANT, MAX_BODY_BYTES, MAX_ONCE, WholePrompts
from tests.support.tokens import CHATML, chat, completion, user, write_model_dir

PATIENT = Limits(deadline_s=30, inline_s=10)
RELEVANT = sorted(
    field.name for field in msgspec.structs.fields(GenerationFields) if field.name not in IRRELEVANT
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("model"))


def with_fields(generation, **given):
    raws = {name: msgspec.Raw(value) for name, value in given.items()}
    fields = msgspec.structs.replace(generation.fields, **raws)
    return msgspec.structs.replace(generation, fields=fields)


async def test_a_prompt_that_came_twice_is_recalled_as_it_was_made(model_dir):
    tokenizer = LocalTokenizer.load(model_dir, limits=PATIENT)
    for asked in (chat([user("Hi")]), completion("fox"), chat([user("Hi")], tools=[TOOL])):
        assert tokenizer.recall(asked) is None
        ids = await tokenizer.tokenize(asked)
        assert tokenizer.recall(asked) is None
        await tokenizer.tokenize(asked)
        assert tokenizer.recall(asked) == ids


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}


@pytest.mark.parametrize("name", RELEVANT)
def test_every_field_that_ids_may_depend_on_tells_prompts_apart(name):
    whole, asked = WholePrompts(1 << 20), chat([user("Hi")])
    for _ in range(2):
        whole.note(asked, b"1111")
    assert whole.recall(asked) == b"1111"
    other = with_fields(asked, **{name: b'"other"'})
    assert whole.recall(other) is None
    if getattr(asked.fields, name) is ABSENT:
        another = with_fields(asked, **{name: b'"another"'})
        for _ in range(2):
            whole.note(other, b"2222")
        assert whole.recall(another) is None
        assert whole.recall(other) == b"2222"


def test_the_same_text_in_another_field_or_for_another_path_is_another_prompt():
    whole, body = WholePrompts(1 << 20), b'{"model": "m", "prompt": "a", "messages": []}'
    asked = parse_generation("/v1/completions", {}, body)
    for _ in range(2):
        whole.note(asked, b"1111")
    assert whole.recall(parse_generation("/v1/chat/completions", {}, body)) is None
    bare = parse_generation("/v1/completions", {}, b'{"model": "m", "prompt": "a"}')
    moved = with_fields(bare, prompt=b"null", suffix=b'"a"')
    for _ in range(2):
        whole.note(bare, b"3333")
    assert whole.recall(bare) == b"3333"
    assert whole.recall(moved) is None


def test_what_no_tokenizer_reads_makes_no_difference():
    whole = WholePrompts(1 << 20)
    for seed in range(2):
        whole.note(chat([user("Hi")], seed=seed, max_tokens=seed + 1), b"1111")
    assert whole.recall(chat([user("Hi")], seed=7, stream=True, n=3)) == b"1111"


def test_long_bodies_are_left_to_the_other_memos():
    whole, asked = WholePrompts(1 << 20), completion("a" * MAX_BODY_BYTES)
    for _ in range(2):
        whole.note(asked, b"1111")
    assert whole.recall(asked) is None


def test_what_came_once_is_forgotten_in_time():
    whole = WholePrompts(1 << 20)
    whole.note(completion("first"), b"1111")
    for number in range(MAX_ONCE):
        whole.note(completion(str(number)), b"1111")
    whole.note(completion("first"), b"1111")
    assert whole.recall(completion("first")) is None


async def test_a_template_that_knows_the_day_is_rendered_each_time(tmp_path):
    source = CHATML + "{{ strftime_now('%d') }}"
    tokenizer = LocalTokenizer.load(write_model_dir(tmp_path, template=source), limits=PATIENT)
    for _ in range(3):
        await tokenizer.tokenize(chat([user("Hi")]))
    assert tokenizer.recall(chat([user("Hi")])) is None


async def test_what_is_recalled_is_judged_as_often_as_what_is_made(model_dir):
    class Always(Random):
        def random(self) -> float:
            return 0.0

    local = LocalTokenizer.load(model_dir, limits=PATIENT)
    judged = JudgedTokenizer(
        local, local, rng=Always(), limits=JudgeLimits(share=0.5, max_waiting=100)
    )
    asked = chat([user("Hi")])
    for _ in range(2):
        await judged.tokenize(asked)
    before = judged._cases.qsize()
    assert judged.recall(asked) is not None
    assert judged._cases.qsize() == before + 1
    judged.is_trusted = False
    assert judged.recall(asked) is None
    assert judged.verdicts[Verdict.EQUAL] == 0
