"""The table of the index against a dict, at sizes where rows split, overflow and merge."""

import random

import numpy as np
import pytest

from router.index.arena import Arena, ArenaFull
from router.index.table import ABSENT, Table


def keys_from(rng: random.Random, count: int) -> np.ndarray:
    return np.array([rng.getrandbits(64) | 1 for _ in range(count)], np.uint64)


def assert_same(arena: Arena, table: Table, model: dict[int, int]) -> None:
    """Every key is found, one by one and all at once, with its value; and nothing else is."""
    assert table.count == len(model)
    keys = np.fromiter(model, np.uint64, len(model))
    slots = table.find_many(keys)
    assert (slots != ABSENT).all()
    assert arena.values[slots].tolist() == list(model.values())
    assert all(table.find(key) == slot for key, slot in zip(model, slots.tolist(), strict=True))
    listed = np.concatenate(list(table.chunks(64)))
    assert sorted(arena.keys[listed].tolist()) == sorted(model)


@pytest.mark.parametrize("seed", range(4))
def test_it_holds_what_a_dict_holds_after_any_inserts_deletes_and_merges(seed):
    rng = random.Random(seed)
    arena = Arena(2**26)
    table, model = Table(arena), {}
    for _ in range(60):
        fresh = keys_from(rng, rng.choice([1, 5, 100, 700, 2000]))
        if rng.random() < 0.3:
            for key in fresh.tolist()[:200]:
                slot = table.insert(key)
                arena.value_cells[slot] = key % 1000
                model[key] = key % 1000
        else:
            slots, is_new = table.upsert_many(fresh)
            assert is_new.all()
            arena.values[slots] = fresh % np.uint64(1000)
            model |= {key: key % 1000 for key in fresh.tolist()}
        gone = rng.sample(sorted(model), rng.randrange(len(model)) // 2)
        half = len(gone) // 2
        for key in gone[:half]:
            table.delete(table.find(key))
        table.delete_many(table.find_many(np.array(gone[half:], np.uint64)))
        for key in gone:
            del model[key]
        if rng.random() < 0.2:
            list(table.merge())
        assert_same(arena, table, model)


def test_an_upsert_says_which_keys_are_new():
    rng = random.Random(5)
    table = Table(Arena(2**24))
    known, fresh = keys_from(rng, 500), keys_from(rng, 500)
    table.upsert_many(known)
    mixed = np.concatenate((known[:100], fresh))
    slots, is_new = table.upsert_many(mixed)
    assert is_new.tolist() == [False] * 100 + [True] * 500
    assert (slots == table.find_many(mixed)).all()
    assert table.count == 1000


@pytest.mark.parametrize("known", [0, 300, 5000])
@pytest.mark.parametrize("count", [3, 40, 600])
def test_a_key_that_comes_several_times_in_a_batch_is_new_once(known, count):
    rng = random.Random(known + count)
    arena = Arena(2**24)
    table = Table(arena)
    before = keys_from(rng, known)
    table.upsert_many(before)
    fresh = keys_from(rng, count)
    batch = np.concatenate((fresh, before[:50], fresh, fresh[: count // 2]))
    slots, is_new = table.upsert_many(batch)
    assert (slots == table.find_many(batch)).all()
    assert table.count == known + count
    assert sorted(batch[is_new].tolist()) == sorted(fresh.tolist())


def test_a_full_arena_refuses_all_of_a_batch_or_nothing():
    rng = random.Random(6)
    arena = Arena(2**18)
    table, kept = Table(arena), []
    while True:
        batch = keys_from(rng, 400)
        try:
            table.upsert_many(batch)
        except ArenaFull:
            assert (table.find_many(batch) == ABSENT).all()
            break
        kept.append(batch)
    everything = np.concatenate(kept)
    assert (table.find_many(everything) != ABSENT).all()
    assert table.count == len(everything)
    assert arena.bytes <= 2**18


def test_a_table_that_is_taken_apart_gives_all_its_memory_back():
    rng = random.Random(7)
    arena = Arena(2**24)
    before = arena.free_rows
    table = Table(arena)
    keys = keys_from(rng, 3000)
    table.upsert_many(keys)
    seen = list(table.dismantle(32))
    assert sum(map(len, seen)) == 3000
    assert arena.free_rows == before
    assert arena.overhead == 0


def test_merging_gives_rows_back_when_most_entries_are_gone():
    rng = random.Random(8)
    arena = Arena(2**24)
    table = Table(arena)
    keys = keys_from(rng, 5000)
    table.upsert_many(keys)
    full = arena.free_rows
    table.delete_many(table.find_many(keys[500:]))
    list(table.merge())
    assert arena.free_rows > full + 200
    assert (table.find_many(keys[:500]) != ABSENT).all()
