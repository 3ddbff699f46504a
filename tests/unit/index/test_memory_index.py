"""What is `MemoryIndex`'s own: bounds, counters, slots, and the cost of clearing."""

import random

import pytest

from router.index import MemoryIndex
from tests.support.events import prefix, removed, stored
from tests.support.indexes import Tiered

TOKENS = list(range(16))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def long_prompt(blocks: int, first: int = 0) -> tuple[list[int], list[int]]:
    """Engine hashes and tokens of a prompt that shares no block with one of another `first`."""
    return list(range(first, first + blocks)), [first + i for i in range(4 * blocks)]


def test_what_waits_too_long_for_its_parent_is_given_up_and_counted():
    clock = Clock()
    index = MemoryIndex(clock=clock, parked_ttl_s=10.0)
    index.store("a", stored([3, 4], TOKENS[8:], parent=2))
    assert index.stats.parked == 1
    clock.now_s = 10.5
    index.store("a", stored([1, 2], TOKENS[:8]))
    assert index.match(prefix(TOKENS)) == {"a": 2}
    assert (index.stats.parked, index.stats.orphaned) == (0, 2)


def test_too_many_that_wait_push_out_the_oldest():
    index = MemoryIndex(clock=Clock(), max_parked=1)
    index.store("a", stored([2], TOKENS[4:8], parent=1))
    index.store("a", stored([12], TOKENS[4:8], parent=11))
    index.store("a", stored([1], TOKENS[:4]))
    assert index.match(prefix(TOKENS)) == {"a": 1}
    assert (index.stats.parked, index.stats.orphaned) == (1, 1)


BOUND = 256 * 1024
SHARES = {MemoryIndex: 1, Tiered: 3}
"""In how many equal parts an index divides its bound."""


def fill(index: MemoryIndex, replica_id: str, chains: int, blocks: int, seed: int = 0) -> None:
    """Chains of random handles, stored in events of 50 blocks."""
    rng = random.Random(seed)
    for _ in range(chains):
        tokens = [rng.randrange(2**31) for _ in range(4 * blocks)]
        parent = None
        for start in range(0, blocks, 50):
            handles = [rng.getrandbits(64) for _ in range(min(50, blocks - start))]
            part = tokens[4 * start : 4 * (start + len(handles))]
            index.store(replica_id, stored(handles, part, parent))
            parent = handles[-1]


@pytest.mark.parametrize("make", [MemoryIndex, Tiered])
def test_the_bound_in_bytes_is_kept_whatever_is_stored(make):
    index = make(clock=Clock(), max_bytes=BOUND * SHARES[make])
    for number in range(40):
        fill(index, f"r{number % 3}", chains=4, blocks=200, seed=number)
        assert index.bytes <= index.max_bytes
    assert len(index) > 2000
    assert index.stats.trimmed > 0


@pytest.mark.parametrize("make", [MemoryIndex, Tiered])
def test_at_the_bound_leaves_go_before_their_parents(make):
    index = make(clock=Clock(), max_bytes=BOUND * SHARES[make])
    rng = random.Random(1)
    prompts = []
    for _ in range(200):
        tokens = [rng.randrange(2**31) for _ in range(4 * 60)]
        index.store("a", stored([rng.getrandbits(64) for _ in range(60)], tokens))
        prompts.append(prefix(tokens))
    while index.is_untidy:
        index.tidy()
    held = index.blocks_of("a")
    for prompt in prompts:
        depth = index.match(prompt).get("a", 0)
        assert not held & set(prompt[depth:]), "a block is held without its parent"
    assert len({index.match(prompt).get("a", 0) for prompt in prompts}) <= 3


def test_at_the_bound_it_is_the_replica_that_holds_most_that_forgets():
    index = MemoryIndex(clock=Clock(), max_bytes=BOUND)
    fill(index, "small", chains=2, blocks=100)
    fill(index, "large", chains=200, blocks=100, seed=1)
    assert index.stats.trimmed > 0
    assert index.replicas()["small"] == 200


def test_a_cap_is_lifted_when_there_is_room_again():
    index = MemoryIndex(clock=Clock(), max_bytes=BOUND)
    fill(index, "large", chains=200, blocks=100, seed=1)
    index.clear("large")
    while index.is_untidy:
        index.tidy()
    handles, tokens = long_prompt(300)
    index.store("large", stored(handles, tokens))
    assert index.match(prefix(tokens)) == {"large": 300}


def test_memory_of_cleared_blocks_is_given_back():
    index = MemoryIndex(clock=Clock(), max_bytes=BOUND)
    for number in range(10):
        fill(index, "a", chains=30, blocks=100, seed=number)
        index.clear("a")
        assert len(index) == 0
        while index.is_untidy:
            index.tidy()
    assert (index.stats.refused, index.stats.trimmed) == (0, 0)


def test_a_slot_is_not_given_out_before_it_is_swept():
    index = MemoryIndex(clock=Clock())
    handles, tokens = long_prompt(10_000)
    index.store("a", stored(handles, tokens))
    index.forget("a")
    index.store("b", stored([1], TOKENS[:4]))
    assert index.match(prefix(tokens)) == {"b": 1}
    assert index.blocks_of("b") == set(prefix(TOKENS[:4]))


def test_blocks_shared_with_a_cleared_replica_can_be_stored_again_while_it_is_swept():
    index = MemoryIndex(clock=Clock())
    handles, tokens = long_prompt(10_000)
    for _ in range(3):
        index.store("a", stored(handles, tokens))
        index.store("b", stored(handles, tokens))
        index.clear("a")
    assert index.match(prefix(tokens)) == {"b": 10_000}
    assert len(index) == len(index.blocks_of("b")) == 10_000


def test_counters_say_what_became_of_each_block():
    index = MemoryIndex(clock=Clock())
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([1, 2], TOKENS[:8], medium="CPU"))
    index.store("a", stored([1, 2], TOKENS[:8], medium="GPU", locality="REMOTE"))
    index.store("a", stored([1, 2], TOKENS[:8], kv_cache_spec_kind="mamba"))
    index.store("a", stored([1, 2, 3], []))
    index.store("a", stored([1, 2, 3], TOKENS[:8]))
    index.store("a", stored([2], TOKENS[:4]))
    index.remove("a", removed(1, 99))
    index.remove("a", removed(1, medium="DISK"))
    stats = index.stats
    assert (stats.stored, stats.removed, stats.removed_unknown) == (3, 1, 1)
    assert (stats.out_of_reach, stats.partial_groups, stats.placeholders) == (5, 2, 3)
    assert (stats.unreadable, stats.conflicts) == (3, 1)


def test_replicas_are_listed_with_what_they_hold():
    index = MemoryIndex(clock=Clock())
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("b", stored([1], TOKENS[:4]))
    index.clear("b")
    assert index.replicas() == {"a": 2, "b": 0}
    assert index.blocks_of("nobody") == set()
