"""The memo of block hashes gives what hashing anew gives, within its bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from router.blocks import as_tokens, hash_blocks
from router.tokens.block_memo import SEGMENT_BLOCKS, BlockMemo


def tokens_of(numbers):
    return as_tokens(numbers).tobytes()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 1200), min_size=1, max_size=8),
    st.sampled_from([1, 2, 16]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 6000),
)
def test_growing_prompts_hash_as_without_a_memo(lengths, block_size, seed, max_bytes):
    memo = BlockMemo(max_bytes)
    prompt: list[int] = []
    for turn, length in enumerate(lengths):
        prompt += range(turn, turn + length)
        tokens = tokens_of(prompt)
        for _ in range(2):
            assert memo.hash_blocks(tokens, block_size, seed) == hash_blocks(
                tokens, block_size, seed
            )
        assert memo.size_bytes <= max_bytes


def test_a_next_turn_hashes_only_what_is_new():
    memo, size = BlockMemo(1 << 20), 16
    turn = list(range(SEGMENT_BLOCKS * size * 3))
    memo.hash_blocks(tokens_of(turn), size)
    assert (memo.hits, memo.misses) == (0, 3)
    memo.hash_blocks(tokens_of(turn + [1] * SEGMENT_BLOCKS * size), size)
    assert (memo.hits, memo.misses) == (3, 4)


def test_another_salt_or_block_size_shares_nothing():
    memo, tokens = BlockMemo(1 << 20), tokens_of(range(SEGMENT_BLOCKS * 32))
    a, b, c = (memo.hash_blocks(tokens, size, seed) for size, seed in ((16, 0), (16, 1), (32, 0)))
    assert not set(a) & set(b)
    assert not set(a) & set(c)
    assert memo.hits == 0
