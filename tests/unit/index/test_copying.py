"""A copy of what a replica holds is of one instant, though events go on while it is made."""

import random

import numpy as np
import pytest

from router.index import MemoryIndex
from tests.support.events import removed, stored

EVENT_BLOCKS = 500


def an_index(blocks: int, rng: random.Random) -> tuple[MemoryIndex, list[int]]:
    """One replica, and the handles that it holds."""
    index, handles = MemoryIndex(clock=lambda: 0.0), []
    for _ in range(blocks // EVENT_BLOCKS):
        new = [rng.getrandbits(60) for _ in range(EVENT_BLOCKS)]
        index.store("a", event(new, rng))
        handles += new
    return index, handles


def event(handles, rng):
    return stored(handles, [rng.getrandbits(16) for _ in handles], block_size=1)


def rows(dump):
    """By group: key → block, depth, copies."""
    found = {}
    for shelf in dump.shelves:
        keys = np.frombuffer(shelf.keys, np.uint64).tolist()
        assert len(set(keys)) == len(keys)
        blocks = np.frombuffer(shelf.blocks, np.uint64).tolist()
        depths = np.frombuffer(shelf.depths, np.uint16).tolist()
        found[shelf.group] = {
            key: (block, depth, shelf.copies.get(key, 0))
            for key, block, depth in zip(keys, blocks, depths, strict=True)
        }
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_is_of_the_instant_at_which_it_began_whatever_happens_meanwhile(seed):
    rng = random.Random(seed)
    index, handles = an_index(30_000, rng)
    index.store("a", event(rng.sample(handles, 300), rng))  # of other blocks now
    before = rows(index.dump("a"))
    steps = 0
    with index.copy("a") as copy:
        while copy.step():
            steps += 1
            gone = rng.sample(handles, rng.choice([10, 4000]))
            index.remove("a", removed(*gone))
            handles = list(set(handles) - set(gone))
            fresh = [rng.getrandbits(60) for _ in range(rng.choice([10, 6000]))]
            index.store("a", event(fresh, rng))
            handles += fresh
            again = rng.sample(handles, 500)
            index.store("a", event(again, rng))
            index.remove("a", removed(*again[:250]))
            index.store("a", event(gone[:5], rng))  # back, as something else
            index.store("b", event(again, rng))
    assert steps > 3
    assert rows(copy.dump()) == before
    assert rows(index.dump("a")) != before


@pytest.mark.parametrize("is_growing", [False, True])
def test_entries_are_copied_once_while_segments_split_or_become_one(is_growing):
    rng = random.Random(7)
    index, handles = an_index(20_000, rng)
    rng.shuffle(handles)
    with index.copy("a") as copy:
        kept = set(handles)
        while copy.step():
            for _ in range(8):
                if is_growing:
                    index.store("a", event([rng.getrandbits(60) for _ in range(1000)], rng))
                else:
                    gone, handles = handles[:800], handles[800:]
                    index.remove("a", removed(*gone))
    (shelf,) = rows(copy.dump()).values()
    assert len(shelf) == len(kept)


def test_two_copies_that_began_at_different_times_are_of_those_times():
    rng = random.Random(1)
    index, handles = an_index(20_000, rng)
    with index.copy("a") as one:
        at_one = rows(index.dump("a"))
        one.step()
        index.remove("a", removed(*handles[:5000]))
        with index.copy("a") as other:
            at_other = rows(index.dump("a"))
            while one.step() | other.step():
                index.store("a", event([rng.getrandbits(60) for _ in range(500)], rng))
            assert (rows(one.dump()), rows(other.dump())) == (at_one, at_other)


@pytest.mark.parametrize("end", ["clear", "forget"])
def test_a_copy_of_what_was_cleared_is_void(end):
    index, _ = an_index(20_000, random.Random(2))
    with index.copy("a") as copy:
        assert copy.step()
        getattr(index, end)("a")
        assert copy.is_void
        assert not copy.step()
    with index.copy("a") as again:
        while again.step():
            pass
        assert not again.is_void


def test_no_step_is_about_more_than_some_thousand_entries():
    index, _ = an_index(100_000, random.Random(3))
    with index.copy("a") as copy:
        steps = 0
        while copy.step():
            steps += 1
    assert steps >= 100_000 / 8192
    assert copy.dump().blocks == 100_000


def test_nothing_is_noted_once_nobody_copies():
    rng = random.Random(4)
    index, handles = an_index(10_000, rng)
    with index.copy("a") as copy:
        copy.step()
    whole = copy.dump().blocks
    index.remove("a", removed(*handles))
    assert copy.dump().blocks == whole
