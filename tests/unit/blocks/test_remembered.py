import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.blocks import as_tokens, hash_blocks
from router.blocks.remembered import MOST, RememberedIds

IDS = as_tokens(range(512)).tobytes()


@given(st.lists(st.integers(0, 2**32 - 1)), st.integers(1, 64), st.integers(0, 2**64 - 1))
def test_they_hash_as_any_ids_do_however_often_they_are_asked(ids, block_size, seed):
    raw = as_tokens(ids).tobytes()
    remembered = RememberedIds(raw)
    assert remembered == raw
    for _ in range(2):
        assert remembered.hash_blocks(block_size, seed) == hash_blocks(raw, block_size, seed)


def test_what_was_hashed_once_is_not_hashed_again():
    remembered = RememberedIds(IDS)
    first = remembered.hash_blocks(16)
    assert remembered.hash_blocks(16) is first
    assert remembered.hash_blocks(16, seed=1) is not first


@pytest.mark.parametrize("block_size", [1, 4, 15])
def test_hashes_that_would_take_much_memory_are_made_anew(block_size):
    remembered = RememberedIds(IDS)
    assert remembered.hash_blocks(block_size) is not remembered.hash_blocks(block_size)


def test_salts_without_end_take_no_more_memory_than_was_counted():
    remembered = RememberedIds(IDS)
    before = sys.getsizeof(remembered)
    kept = [remembered.hash_blocks(16, seed) for seed in range(3 * MOST)]
    again = [remembered.hash_blocks(16, seed) for seed in range(3 * MOST)]
    assert sum(one is other for one, other in zip(kept, again, strict=True)) == MOST
    assert sys.getsizeof(remembered) == before
    assert before >= len(IDS) + sum(len(one) * one.itemsize for one in kept[:MOST])
