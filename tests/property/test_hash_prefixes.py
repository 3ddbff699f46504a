"""Two prompts share as many hashes as they share leading blocks, and no more."""

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from router.blocks import as_tokens, hash_blocks, prefix_seed

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=60)
SMALL_IDS = st.lists(st.integers(0, 2), max_size=30)
SIZES = st.integers(1, 9)
NAMES = st.none() | st.text(max_size=4)


@given(head=SMALL_IDS, one=SMALL_IDS, other=SMALL_IDS, size=SIZES)
def test_hashes_agree_exactly_on_the_blocks_that_agree(head, one, other, size):
    first, second = head + one, head + other
    blocks = min(len(first), len(second)) // size
    shared = 0
    while shared < blocks and first[: (shared + 1) * size] == second[: (shared + 1) * size]:
        shared += 1
    a, b = hash_blocks(as_tokens(first), size), hash_blocks(as_tokens(second), size)
    assert a[:shared] == b[:shared]
    assert not set(a[shared:]) & set(b[shared:])


@given(
    size=st.integers(1, 70) | st.sampled_from([128, 255, 256, 257, 272, 512, 1024]),
    blocks=st.integers(0, 12),
    seed=st.integers(0, 2**64 - 1),
    rng=st.randoms(use_true_random=False),
)
def test_many_blocks_are_hashed_as_xxhash_hashes_one(size, blocks, seed, rng):
    """Many go through compiled code of our own."""
    raw = rng.randbytes(4 * (size * blocks + rng.randrange(size)))
    expected, before = [], seed
    for number in range(blocks):
        before = xxh3_64_intdigest(raw[4 * size * number : 4 * size * (number + 1)], before)
        expected.append(before)
    assert hash_blocks(raw, size, seed).tolist() == expected
    at_odd_place = memoryview(b"x" + raw)[1:]
    assert hash_blocks(at_odd_place, size, seed).tolist() == expected


@given(ids=IDS, size=SIZES, cut=st.integers(0, 60))
def test_a_chain_may_be_cut_at_any_block(ids, size, cut):
    blocks = min(cut, len(ids) // size)
    whole = hash_blocks(as_tokens(ids), size)
    head = hash_blocks(as_tokens(ids[: blocks * size]), size)
    seed = head[-1] if head else 0
    assert head + hash_blocks(as_tokens(ids[blocks * size :]), size, seed) == whole


@given(
    ids=IDS.filter(lambda ids: len(ids) > 0),
    one=st.tuples(NAMES, NAMES),
    other=st.tuples(NAMES, NAMES),
)
def test_only_equal_salts_and_adapters_share_blocks(ids, one, other):
    a = hash_blocks(as_tokens(ids), 1, prefix_seed(*one))
    b = hash_blocks(as_tokens(ids), 1, prefix_seed(*other))
    assert (a == b) == (one == other)
