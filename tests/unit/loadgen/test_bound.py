"""The best possible hit rate."""

from loadgen.bound import (
    EXACT,
    FROM_USAGE,
    TokenizeUnavailable,
    exact_bound,
    find_bound,
    usage_bound,
)
from loadgen.record import Record
from loadgen.runner import RunResult
from loadgen.workload.protocol import Message

BLOCK = 4


def record(number: int, prompt_tokens: int, session: str = "s", turn: int = 0, output: int = 1):
    return Record(
        number=number,
        session=session,
        turn=turn,
        outcome="ok",
        scheduled_s=number,
        sent_s=number,
        end_s=number + 1,
        prompt_tokens=prompt_tokens,
        completion_tokens=output,
    )


def bound_of(*prompts: list[int], sessions: str = "", outputs: tuple[int, ...] = ()):
    records = [
        record(
            n,
            len(prompt),
            session=sessions[n] if sessions else str(n),
            output=outputs[n] if outputs else 1,
        )
        for n, prompt in enumerate(prompts)
    ]
    return exact_bound(records, dict(enumerate(prompts)), BLOCK)


def test_first_prompt_finds_nothing():
    assert bound_of(list(range(8))) == 0.0


def test_only_full_blocks_hit():
    assert bound_of(list(range(6)), list(range(6))) == round(4 / 12, 5)


def test_last_token_is_always_computed():
    # Eight tokens are two blocks, but the second holds the last token.
    assert bound_of(list(range(8)), list(range(8))) == round(4 / 16, 5)


def test_blocks_after_the_first_difference_do_not_hit():
    assert bound_of(list(range(12)), [*range(4), 99, *range(5, 12)]) == round(4 / 24, 5)


def test_answer_s_blocks_hit_in_the_next_turn_but_for_its_last_token():
    first = list(range(6))
    second = [*first, *range(50, 55), 90, 91]
    # 6 + 6 - 1 = 11 tokens were computed: two blocks. With an answer of 7 tokens, three.
    assert bound_of(first, second, sessions="aa", outputs=(6, 1)) == round(8 / 19, 5)
    assert bound_of(first, second, sessions="aa", outputs=(7, 1)) == round(12 / 19, 5)


def test_answer_helps_nobody_else():
    first = list(range(6))
    second = [*first, *range(50, 55), 90, 91]
    assert bound_of(first, second, sessions="ab", outputs=(7, 1)) == round(4 / 19, 5)


def test_template_that_rewrites_history_leaves_only_what_is_equal():
    assert bound_of(list(range(8)), [*range(4), *range(70, 80)], sessions="aa", outputs=(9, 1)) == (
        round(4 / 22, 5)
    )


def test_usage_gives_the_same_bound_for_a_conversation():
    first = list(range(30))
    second = [*first, *range(100, 140)]
    records = [record(0, 30, output=21), record(1, 70, turn=1)]
    exact = exact_bound(records, {0: first, 1: second}, BLOCK)
    assert usage_bound(records, BLOCK) == exact == round(48 / 100, 5)


def test_usage_of_a_silent_engine_gives_none():
    silent = Record(number=0, session="s", turn=0, outcome="ok", scheduled_s=0, sent_s=0, end_s=1)
    assert usage_bound([silent], BLOCK) is None


def conversation() -> RunResult:
    records = [record(0, 30, output=21), record(1, 70, turn=1)]
    prompts: dict[int, tuple[Message, ...]] = {
        0: (Message("user", "30"),),
        1: (Message("user", "70"),),
    }
    return RunResult(planned=2, records=records, prompts=prompts)


async def test_bound_says_how_it_was_found():
    async def tokenize(messages):
        return list(range(int(messages[-1].content)))

    async def refuse(messages):
        raise TokenizeUnavailable("404")

    exact = await find_bound(conversation(), tokenize, BLOCK)
    estimate = await find_bound(conversation(), refuse, BLOCK)
    assert exact is not None
    assert estimate is not None
    assert (exact.method, estimate.method) == (EXACT, FROM_USAGE)
    assert exact.rate == estimate.rate


async def test_without_tokens_and_conversations_there_is_no_bound():
    async def refuse(messages):
        raise TokenizeUnavailable("404")

    single = conversation()
    single.records.pop()
    assert await find_bound(single, refuse, BLOCK) is None


def growing(first: int, step: int, sessions: str = "ab", turns: int = 3) -> RunResult:
    """Conversations whose prompts are `first`, `first + step`, … tokens."""
    records: list[Record] = []
    prompts: dict[int, tuple[Message, ...]] = {}
    for turn in range(turns):
        for session in sessions:
            number = len(records)
            length = first + step * turn
            records.append(record(number, length, session=session, turn=turn, output=3))
            prompts[number] = (Message("user", f"{session} {length}"),)
    return RunResult(planned=len(records), records=records, prompts=prompts)


async def test_growing_conversations_are_tokenized_once_each_but_for_one():
    asked = []

    async def tokenize(messages):
        session, length = messages[-1].content.split()
        asked.append(session)
        return [ord(session) * 1000 + n for n in range(int(length))]

    result = growing(20, 10, sessions="abcd")
    bound = await find_bound(result, tokenize, BLOCK)
    assert sorted(asked) == ["a", "a", "a", "b", "c", "d"]
    assert bound is not None
    assert bound.rate == usage_bound(result.records, BLOCK)


async def test_conversations_that_are_rewritten_are_tokenized_turn_by_turn():
    asked = []

    async def tokenize(messages):
        session, length = messages[-1].content.split()
        asked.append(session)
        return [int(length) * 1000 + n for n in range(int(length))]

    bound = await find_bound(growing(20, 10), tokenize, BLOCK)
    assert sorted(asked) == ["a"] * 3 + ["b"] * 3
    assert bound is not None
    # The other conversation's prompt of the same length is the same here.
    assert bound.rate == round((16 + 28 + 36) / 180, 5)
