"""Words from a seed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.text import KEY_WORDS, POOL_WORDS, Prose, load_vocabulary

PROSE = Prose(seed=3)


def test_vocabulary_is_plain_distinct_words():
    words = load_vocabulary()
    assert len(set(words)) == len(words) == 1624
    assert all(word.isalpha() and word.islower() for word in words)


@settings(deadline=None)
@given(st.text(max_size=20), st.integers(1, 3 * POOL_WORDS))
def test_passage_has_the_length_asked_for(key, tokens):
    assert len(PROSE.passage(key, tokens).split()) == tokens


def test_tokens_become_words_by_the_measured_ratio():
    assert len(Prose(3, tokens_per_word=1.25).passage("key", 1000).split()) == 800


def test_same_seed_and_key_give_the_same_text():
    assert Prose(3).passage("key", 500) == PROSE.passage("key", 500)
    assert Prose(4).passage("key", 500) != PROSE.passage("key", 500)


def test_different_keys_differ_at_the_start():
    starts = {PROSE.passage(f"block {n}", KEY_WORDS) for n in range(5000)}
    assert len(starts) == 5000


def test_longer_passage_of_a_key_continues_the_shorter():
    assert PROSE.passage("key", 900).startswith(PROSE.passage("key", 90))


def test_ratio_that_is_none_is_refused():
    with pytest.raises(ValueError, match="positive"):
        Prose(3, tokens_per_word=0.0)
