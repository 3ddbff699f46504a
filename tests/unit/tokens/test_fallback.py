import pytest

from router.openai.generation import Generation
from router.tokens import ByModel, FallbackTokenizer, NullTokenizer, Reason, TokenizeFailed
from router.tokens.protocol import FINAL
from tests.support.tokens import completion


class Fixed:
    """Answers with ids, or fails for a reason, and counts."""

    def __init__(self, answer: bytes | Reason) -> None:
        self.answer = answer
        self.asked = 0
        self.remembered: bytes | None = None

    async def tokenize(self, generation: Generation) -> bytes:
        self.asked += 1
        if isinstance(self.answer, Reason):
            raise TokenizeFailed(self.answer)
        return self.answer

    def recall(self, generation: Generation) -> bytes | None:
        return self.remembered


async def reason_of(tokenizer) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        await tokenizer.tokenize(completion("a"))
    return caught.value.reason


async def test_null_is_unavailable():
    assert await reason_of(NullTokenizer()) is Reason.UNAVAILABLE
    assert await reason_of(FallbackTokenizer([])) is Reason.UNAVAILABLE


async def test_the_first_success_is_the_answer():
    first, second = Fixed(b"1111"), Fixed(b"2222")
    assert await FallbackTokenizer([first, second]).tokenize(completion("a")) == b"1111"
    assert second.asked == 0


async def test_no_ids_are_a_success():
    assert await FallbackTokenizer([Fixed(b""), Fixed(b"1111")]).tokenize(completion("")) == b""


@pytest.mark.parametrize("reason", sorted(set(Reason) - FINAL))
async def test_the_next_one_is_asked_when_it_may_know_better(reason):
    fallback = FallbackTokenizer([Fixed(reason), Fixed(b"2222")])
    assert await fallback.tokenize(completion("a")) == b"2222"


@pytest.mark.parametrize("reason", sorted(FINAL))
async def test_nobody_else_is_asked_about_a_prompt_that_is_at_fault(reason):
    second = Fixed(b"2222")
    assert await reason_of(FallbackTokenizer([Fixed(reason), second])) is reason
    assert second.asked == 0


async def test_nobody_left_to_ask_does_not_hide_the_cause():
    fallback = FallbackTokenizer([Fixed(Reason.TEMPLATE_ERROR), NullTokenizer()])
    assert await reason_of(fallback) is Reason.TEMPLATE_ERROR


async def test_the_last_reason_is_told():
    fallback = FallbackTokenizer([Fixed(Reason.UNSUPPORTED), Fixed(Reason.TIMEOUT)])
    assert await reason_of(fallback) is Reason.TIMEOUT


async def test_each_model_has_its_own():
    by_model = ByModel({"m": Fixed(b"mmmm"), "n": Fixed(b"nnnn")}, default=Fixed(b"dddd"))
    for model, ids in (("m", b"mmmm"), ("n", b"nnnn"), ("adapter", b"dddd")):
        assert await by_model.tokenize(completion("a", model=model)) == ids


def test_only_what_the_first_remembers_is_recalled():
    first, second = Fixed(b"1111"), Fixed(b"2222")
    second.remembered = b"2222"
    both = FallbackTokenizer([first, second])
    assert both.recall(completion("a")) is None
    first.remembered = b"1111"
    assert both.recall(completion("a")) == b"1111"
    assert FallbackTokenizer([]).recall(completion("a")) is None
    assert NullTokenizer().recall(completion("a")) is None


def test_each_model_recalls_its_own():
    one, other = Fixed(b"1111"), Fixed(b"2222")
    one.remembered, other.remembered = b"1111", b"2222"
    asked = completion("a")
    assert ByModel({asked.model: one}, other).recall(asked) == b"1111"
    assert ByModel({}, other).recall(asked) == b"2222"
