"""A tokenizer that errs is found out, named, not believed, and earns its trust back."""

import asyncio
import json
import logging
from random import Random

import pytest

from router.blocks import as_tokens
from router.tokens import (
    FallbackTokenizer,
    JudgedTokenizer,
    JudgeLimits,
    Limits,
    LocalTokenizer,
    Reason,
    TokenizeFailed,
    Verdict,
)
from tests.support.tokens import (
    byte_level_tokenizer,
    chat,
    completion,
    unpack,
    user,
    write_model_dir,
)

PATIENT = Limits(deadline_s=30, inline_s=10)
ALL = JudgeLimits(share=1.0, cure=3)


class ScriptedEngine:
    """Answers as the model's tokenizer does, then as `twist` changes it; or fails."""

    def __init__(self):
        self.tokenizer = byte_level_tokenizer()
        self.twist = list
        self.failure = None
        self.asked = 0

    async def tokenize(self, generation):
        self.asked += 1
        if self.failure is not None:
            raise TokenizeFailed(self.failure)
        text = generation.fields.prompt
        ids = self.tokenizer.encode(json.loads(bytes(text))).ids
        return as_tokens(self.twist(ids)).tobytes()

    def recall(self, generation):
        return None


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
async def judged(model_dir, engine):
    made = JudgedTokenizer(
        LocalTokenizer.load(model_dir, limits=PATIENT), engine, rng=Random(0), limits=ALL
    )
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.001)


async def seen(judged, count):
    await until(lambda: judged.verdicts.total() >= count)


async def reason_of(tokenizer, generation):
    with pytest.raises(TokenizeFailed) as failed:
        await tokenizer.tokenize(generation)
    return failed.value.reason


async def test_equal_ids_keep_the_trust(judged):
    await judged.tokenize(completion("fox"))
    await seen(judged, 1)
    assert judged.is_trusted
    assert judged.verdicts == {Verdict.EQUAL: 1}


async def test_a_difference_is_named_by_position_and_token_without_the_prompt(
    judged, engine, caplog
):
    vocabulary = engine.tokenizer.get_vocab()
    engine.twist = lambda ids: [*ids[:2], vocabulary["q"], *ids[3:]]
    text = "a secret fox"
    with caplog.at_level(logging.WARNING):
        ids = unpack(await judged.tokenize(completion(text)))
        await seen(judged, 1)
    assert not judged.is_trusted
    assert judged.last_difference.position == 2
    assert judged.last_difference.ours == engine.tokenizer.id_to_token(ids[2])
    assert judged.last_difference.theirs == "q"
    assert "position 2" in caplog.text
    assert text not in caplog.text


async def test_a_missing_end_is_a_difference_too(judged, engine):
    engine.twist = lambda ids: ids[:-1]
    ids = unpack(await judged.tokenize(completion("fox and hound")))
    await seen(judged, 1)
    assert judged.last_difference.position == len(ids) - 1
    assert judged.last_difference.theirs is None


async def test_who_is_not_trusted_leaves_it_to_the_engine(judged, engine):
    engine.twist = lambda ids: [*ids, 1]
    both = FallbackTokenizer([judged, engine])
    await both.tokenize(completion("fox"))
    await seen(judged, 1)
    assert unpack(await both.tokenize(completion("dog")))[-1] == 1
    engine.failure = Reason.UNAVAILABLE
    assert await reason_of(both, completion("cat")) is Reason.UNTRUSTED


async def test_trust_comes_back_after_enough_different_prompts(judged, engine, caplog):
    engine.twist = lambda ids: [*ids, 1]
    await judged.tokenize(completion("fox"))
    await seen(judged, 1)
    engine.twist = list
    for number in range(4):
        assert await reason_of(judged, completion("the same")) is Reason.UNTRUSTED
        await seen(judged, 2 + number)
    assert not judged.is_trusted
    for number, text in enumerate(("one", "two")):
        assert await reason_of(judged, completion(text)) is Reason.UNTRUSTED
        await seen(judged, 6 + number)
    assert judged.is_trusted
    assert await judged.tokenize(completion("fox")) != b""


async def test_another_mistake_on_the_way_back_starts_over(judged, engine):
    engine.twist = lambda ids: [*ids, 1]
    await judged.tokenize(completion("fox"))
    await seen(judged, 1)
    engine.twist = list
    for number, text in enumerate(("one", "two")):
        assert await reason_of(judged, completion(text)) is Reason.UNTRUSTED
        await seen(judged, 2 + number)
    engine.twist = lambda ids: [*ids, 1]
    assert await reason_of(judged, completion("three")) is Reason.UNTRUSTED
    await seen(judged, 4)
    engine.twist = list
    for number, text in enumerate(("four", "five")):
        assert await reason_of(judged, completion(text)) is Reason.UNTRUSTED
        await seen(judged, 5 + number)
    assert not judged.is_trusted


async def test_a_reply_that_counts_otherwise_is_looked_into(model_dir, engine):
    never = JudgeLimits(share=0.0, probation=0)
    judged = JudgedTokenizer(
        LocalTokenizer.load(model_dir, limits=PATIENT), engine, rng=Random(0), limits=never
    )
    task = asyncio.create_task(judged.run())
    ids = unpack(await judged.tokenize(completion("fox")))
    judged.observe_count(completion("fox"), len(ids), len(ids))
    judged.observe_count(completion(["fox", "dog"]), len(ids), 2 * len(ids))
    assert engine.asked == 0
    engine.twist = lambda ids: [*ids, 1]
    judged.observe_count(completion("fox"), len(ids), len(ids) + 1)
    await seen(judged, 1)
    assert not judged.is_trusted
    assert judged.verdicts == {Verdict.DIFFERENT: 1}
    task.cancel()


async def test_without_tokenize_the_count_decides(judged, engine, caplog):
    engine.failure = Reason.UNAVAILABLE
    ids = unpack(await judged.tokenize(completion("fox")))
    await seen(judged, 1)
    assert judged.is_trusted
    judged.observe_count(completion("fox"), len(ids), len(ids) + 5)
    await seen(judged, 2)
    assert not judged.is_trusted
    assert f"{len(ids)} ids where the engine counts {len(ids) + 5}" in caplog.text


async def test_an_engine_that_counts_in_its_own_way_is_not_held_against_us(judged, engine):
    ids = unpack(await judged.tokenize(completion("fox")))
    judged.observe_count(completion("fox"), len(ids), 99)
    await seen(judged, 2)
    asked = engine.asked
    judged.observe_count(completion("fox"), len(ids), 98)
    assert judged.is_trusted
    assert engine.asked == asked


async def test_the_first_prompts_are_always_compared_and_then_a_share(model_dir, engine):
    limits = JudgeLimits(share=0.0, probation=2)
    judged = JudgedTokenizer(
        LocalTokenizer.load(model_dir, limits=PATIENT), engine, rng=Random(0), limits=limits
    )
    task = asyncio.create_task(judged.run())
    for number in range(1, 5):
        await judged.tokenize(completion(f"fox {number}"))
        await seen(judged, min(number, 2))
    assert judged.verdicts.total() == 2
    task.cancel()


async def test_more_than_can_wait_is_not_compared(model_dir, engine):
    limits = JudgeLimits(share=1.0, max_waiting=2)
    judged = JudgedTokenizer(
        LocalTokenizer.load(model_dir, limits=PATIENT), engine, rng=Random(0), limits=limits
    )
    for number in range(5):
        await judged.tokenize(chat([user(f"{number}")]))
    assert judged.verdicts.total() == 0


async def test_one_deadline_for_all_tokenizers_together(judged):
    class Slow:
        async def tokenize(self, generation):
            await asyncio.Event().wait()

        def recall(self, generation):
            return None

    both = FallbackTokenizer([Slow(), judged], deadline_s=0.05)
    assert await reason_of(both, completion("fox")) is Reason.TIMEOUT
