"""What is `MemoryIndex`'s own: bounds, counters, slots, and the cost of clearing."""

from router.index import MemoryIndex
from tests.support.events import prefix, removed, stored

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


def test_at_its_bound_the_index_refuses_new_blocks_and_counts_them():
    index = MemoryIndex(clock=Clock(), max_blocks=4)
    index.store("a", stored([1, 2, 3], TOKENS[:12]))
    index.store("b", stored([1, 2], TOKENS[:8]))
    assert index.match(prefix(TOKENS)) == {"a": 3}
    assert (len(index), index.stats.refused) == (3, 2)
    index.remove("a", removed(3, 2))
    index.store("b", stored([1, 2], TOKENS[:8]))
    assert index.match(prefix(TOKENS)) == {"a": 1, "b": 2}


def test_cleared_blocks_stop_matching_at_once_and_make_room_as_they_are_swept():
    index = MemoryIndex(clock=Clock(), max_blocks=10_000)
    handles, tokens = long_prompt(10_000)
    index.store("a", stored(handles, tokens))
    index.clear("a")
    assert len(index) == 0
    assert index.match(prefix(tokens)) == {}
    for first in range(100_000, 106_000, 1000):
        handles, tokens = long_prompt(1000, first)
        index.store("a", stored(handles, tokens))
    assert index.stats.refused == 0
    assert index.match(prefix(tokens)) == {"a": 1000}


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
