"""Our block hash: what it depends on, and on nothing else."""

from array import array

import pytest
from xxhash import xxh3_64_intdigest

from router.blocks import NO_SEED, as_tokens, hash_blocks, item_seed, prefix_seed
from router.blocks.hashing import hash_each

TOKENS = as_tokens(range(64))


def test_each_hash_is_xxh3_of_the_blocks_ids_seeded_with_the_hash_before():
    first, second = hash_blocks(as_tokens([1, 2, 3, 4]), 2)
    one = b"\x01\0\0\0\x02\0\0\0"
    two = b"\x03\0\0\0\x04\0\0\0"
    assert first == xxh3_64_intdigest(one, 0)
    assert second == xxh3_64_intdigest(two, first)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 0), (15, 0), (16, 1), (17, 1), (31, 1), (32, 2)]
)
def test_only_full_blocks_have_a_hash(tokens, blocks):
    assert len(hash_blocks(TOKENS[:tokens], 16)) == blocks


def test_tokens_may_come_as_an_array_or_as_its_bytes():
    raw = TOKENS.tobytes()
    assert hash_blocks(raw, 16) == hash_blocks(TOKENS, 16) == hash_blocks(memoryview(raw), 16)


def test_a_chain_can_be_continued_from_the_hash_before():
    whole = hash_blocks(TOKENS, 16)
    head = hash_blocks(TOKENS[:32], 16)
    assert head + hash_blocks(TOKENS[32:], 16, seed=head[-1]) == whole


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16, 32, 48, 60, 64, 300])
def test_blocks_of_many_chains_are_hashed_as_each_alone(size):
    seeds = array("Q", [0, 1, 2**64 - 1, 77])
    tokens = as_tokens((number * 2654435761) % 2**32 for number in range(len(seeds) * size))
    alone = [
        hash_blocks(tokens[number * size : (number + 1) * size], size, seed)[0]
        for number, seed in enumerate(seeds)
    ]
    hash_each(tokens, size, seeds)
    assert seeds.tolist() == alone


def test_a_changed_token_changes_its_block_and_all_after():
    changed = array("I", TOKENS)
    changed[20] += 1
    before, after = hash_blocks(TOKENS, 16), hash_blocks(changed, 16)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, False]


def test_equal_blocks_at_other_places_differ():
    first, second, third = hash_blocks(as_tokens([7] * 12), 4)
    assert len({first, second, third}) == 3


def test_another_block_size_gives_other_hashes():
    assert not set(hash_blocks(TOKENS, 16)) & set(hash_blocks(TOKENS, 32))


@pytest.mark.parametrize("ids", [[-1], [2**32]])
def test_ids_that_do_not_fit_are_refused(ids):
    with pytest.raises(OverflowError):
        as_tokens(ids)


def test_no_salt_and_no_adapter_is_no_seed():
    assert prefix_seed() == prefix_seed(None, None) == NO_SEED


def test_salts_and_adapters_never_meet():
    seeds = [
        prefix_seed(),
        prefix_seed(salt=""),
        prefix_seed(adapter=""),
        prefix_seed(salt="x"),
        prefix_seed(adapter="x"),
        prefix_seed(salt="x", adapter="x"),
        prefix_seed(salt="xx"),
        prefix_seed(salt="x", adapter="xx"),
        prefix_seed(salt="xx", adapter="x"),
        prefix_seed(salt="=1:x"),
    ]
    assert len(set(seeds)) == len(seeds)


def test_any_text_can_be_a_salt():
    assert prefix_seed(salt="\ud800") != prefix_seed(salt="ü")


def test_an_item_changes_its_block_and_all_after():
    plain = hash_blocks(TOKENS, 16)
    with_image = hash_blocks(TOKENS, 16, items={1: item_seed(("image", 3))})
    other_image = hash_blocks(TOKENS, 16, items={1: item_seed(("other", 3))})
    assert with_image[0] == other_image[0] == plain[0]
    assert not set(with_image[1:]) & set(other_image[1:])
    assert not set(with_image[1:]) & set(plain[1:])
