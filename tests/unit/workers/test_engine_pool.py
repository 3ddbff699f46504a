"""Reference counts, copies and the order of eviction."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.engine.pool import BlockPool


def filled(pool, hashes):
    """Blocks that hold these hashes, as one sequence would have computed them."""
    blocks = pool.allocate(len(hashes))
    for block, value in zip(blocks, hashes, strict=True):
        pool.store(block, value)
    return blocks


def test_block_zero_is_never_handed_out():
    pool = BlockPool(4)
    assert pool.capacity == 3
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)


def test_the_tail_of_the_sequence_released_first_is_evicted_first():
    pool = BlockPool(7)
    pool.release(filled(pool, [11, 12, 13]))
    pool.release(filled(pool, [21, 22, 23]))
    pool.allocate(4)
    assert pool.take_evicted() == [13, 12, 11, 23]
    assert pool.take_evicted() == []


def test_blocks_without_a_hash_are_reused_before_any_cached_one():
    pool = BlockPool(7)
    blocks = filled(pool, [11, 12])
    partial = pool.allocate(1)
    pool.release(blocks + partial)
    assert pool.allocate(1) == partial
    assert pool.allocate(3) == [4, 5, 6]
    assert pool.take_evicted() == []


def test_a_hit_saves_blocks_from_eviction():
    pool = BlockPool(4)
    pool.release(filled(pool, [11, 12, 13]))
    hits = pool.match([11, 12, 99], limit=3)
    assert pool.idle(hits) == 2
    pool.acquire(hits)
    assert pool.idle(hits) == 0
    pool.allocate(1)
    assert pool.take_evicted() == [13]
    assert pool.free_count == 0


def test_equal_blocks_are_copies_and_each_eviction_is_told():
    pool = BlockPool(4)
    first, second = filled(pool, [11]), filled(pool, [11])
    assert pool.copies() == {11: 2}
    assert pool.match([11], 1) == first
    pool.release(first)
    pool.release(second)
    pool.allocate(2)
    assert pool.take_evicted() == [11]
    assert pool.match([11], 1) == second
    pool.allocate(1)
    assert pool.take_evicted() == [11]
    assert not pool.holds(11)


def test_a_promised_block_matches_within_its_step_only():
    pool = BlockPool(4)
    [block] = pool.allocate(1)
    pool.promise(block, 11)
    assert pool.match([11], 1) == [block]
    assert not pool.holds(11)
    pool.end_step()
    assert pool.match([11], 1) == []


def test_reset_is_refused_while_blocks_are_in_use():
    pool = BlockPool(4)
    blocks = filled(pool, [11])
    assert not pool.reset()
    pool.release(blocks)
    assert pool.reset()
    assert pool.copies() == {}
    pool.allocate(3)
    assert pool.take_evicted() == []


class PoolMachine(RuleBasedStateMachine):
    """Any order of use keeps the books balanced."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(12)
        self.sequences = []
        self.cached = {}

    @rule(count=st.integers(1, 5))
    def allocate(self, count):
        if count <= self.pool.free_count:
            before = self.pool.eviction_order()[:count]
            taken = self.pool.allocate(count)
            assert taken == before
            self.sequences.append(taken)
            self.forget(self.pool.take_evicted())

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), value=st.integers(0, 6))
    def store(self, data, value):
        blocks = data.draw(st.sampled_from(self.sequences))
        block = data.draw(st.sampled_from(blocks))
        if all(block not in held for held in self.cached.values()):
            self.pool.store(block, value)
            self.cached.setdefault(value, []).append(block)

    @rule(values=st.lists(st.integers(0, 6), max_size=3, unique=True))
    def reuse(self, values):
        hits = self.pool.match(values, len(values))
        assert all(value in self.cached for value in values[: len(hits)])
        self.pool.acquire(hits)
        if hits:
            self.sequences.append(hits)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.sequences) - 1))
        self.pool.release(self.sequences.pop(index))

    @rule()
    def reset(self):
        if self.pool.reset():
            self.cached.clear()
        assert not self.cached or self.sequences

    def forget(self, evicted):
        for value in evicted:
            held = self.cached[value]
            used = {block for blocks in self.sequences[:-1] for block in blocks}
            gone = [block for block in held if block in self.sequences[-1] and block not in used]
            held.remove(gone[0])
            if not held:
                del self.cached[value]

    @invariant()
    def references_add_up(self):
        for block in range(1, 12):
            users = sum(blocks.count(block) for blocks in self.sequences)
            assert self.pool.references(block) == users

    @invariant()
    def capacity_is_conserved(self):
        used = {block for blocks in self.sequences for block in blocks}
        assert self.pool.used_count == len(used)
        assert used.isdisjoint(self.pool.eviction_order())
        assert self.pool.free_count + len(used) == self.pool.capacity

    @invariant()
    def copies_are_what_was_stored_and_not_evicted(self):
        assert self.pool.copies() == {value: len(held) for value, held in self.cached.items()}


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
