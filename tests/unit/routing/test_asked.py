"""What consistent hashing is over."""

import pytest

from router.routing.asked import CALM, Ask, Contender, Prefix, ring_key
from tests.support.builders import candidate

SIZE = 16


def key(question, held_tokens, prompt_tokens=1000, session=None, **values):
    """Of prompts with 800 tokens in common and 200 of their own; two of three hold so many."""
    hashes = (*range(50), *range(1000 * question, 1000 * question + 12))
    contenders = [Contender(f"r{i}", "m", Prefix(hashes, SIZE)) for i in range(3)]
    holders = values.pop("holders", 2)
    candidates = [
        candidate(f"r{i}", hit_tokens=held_tokens if i < holders else 0, **values) for i in range(3)
    ]
    return ring_key(Ask(prompt_tokens, session), contenders, candidates)


def test_questions_behind_what_several_hold_have_one_order_of_replicas():
    assert key(1, 800) == key(2, 800)


@pytest.mark.parametrize(
    "values",
    [{"holders": 1}, {"busy": CALM + 0.1}, {"held_tokens": 736}],
    ids=["one holds it", "a busy fleet", "less than most is held"],
)
def test_else_each_has_its_own(values):
    held_tokens = values.pop("held_tokens", 800)
    assert key(1, held_tokens, **values) != key(2, held_tokens, **values)


def test_a_session_has_its_home_whatever_is_held():
    assert key(1, 800, session="s") == "s"


def test_beginnings_that_nobody_holds_have_one_home_each():
    assert key(1, 0) == key(2, 0)  # alike for 8 blocks
