"""The compiled tables against dicts: segments that split and merge, directories that grow, and
what readers in other processes see."""

import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from router.index import MemoryIndex, kernels, sweeping
from router.index.arena import Arena, halves
from router.index.layout import (
    BLOCKS,
    COPIES,
    COUNT,
    FREE,
    FRESH,
    LEVEL,
    SETS,
    SLOTS_USED,
    UNIT,
    UNITS,
    USED,
    VERSION,
)
from tests.support.events import prefix, removed, stored

ROOT = Path(__file__).parents[3]
HASHES = 2**64


def open_shelf(arena: Arena, slot: int) -> int:
    key = random.Random(slot).getrandbits(64)
    assert arena.write(sweeping.open_slot, slot, slot, key & 0xFFFFFFFF, key >> 32)
    return arena.write(kernels.new_shelf, slot)


def store(arena: Arena, shelf: int, pairs: dict[int, int], depth: int = 0) -> int:
    keys, blocks = halves(list(pairs)), halves(list(pairs.values()))
    return arena.write(kernels.store, shelf, depth, keys, blocks, int(COPIES))[0]


def held(arena: Arena, shelf: int, handles: list[int]) -> list[int | None]:
    found = [kernels.look_up(arena.cells, shelf, halves([handle])) for handle in handles]
    return [int(block) if depth >= 0 else None for depth, block in found]


@pytest.mark.parametrize("seed", range(3))
def test_shelves_hold_what_dicts_hold_through_splits_and_merges(seed):
    rng = random.Random(seed)
    arena = Arena(2**23)
    shelves = [open_shelf(arena, slot) for slot in range(3)]
    models: list[dict[int, int]] = [{} for _ in shelves]
    most = 0
    for _ in range(60):
        which = rng.randrange(3)
        shelf, model = shelves[which], models[which]
        if rng.random() < 0.6:
            count = rng.choice([1, 30, 900, 4000])
            fresh = {rng.randrange(HASHES): rng.randrange(HASHES) for _ in range(count)}
            assert store(arena, shelf, fresh) == count
            model.update(fresh)
        else:
            gone = rng.sample(sorted(model), len(model) * rng.choice([1, 9]) // 10)
            assert arena.write(kernels.remove_copies, shelf, halves(gone)) == 0
            for handle in gone:
                del model[handle]
        most = max(most, arena.header[USED])
        sample = rng.sample(sorted(model), min(len(model), 300))
        assert held(arena, shelf, sample) == [model[handle] for handle in sample]
        assert held(arena, shelf, [rng.randrange(HASHES) for _ in range(50)]) == [None] * 50
        assert arena.header[BLOCKS + COUNT] == sum(map(len, models))
        assert arena.cells[shelf + COUNT] == len(model)
    for shelf, model in zip(shelves, models, strict=True):
        arena.write(kernels.remove_copies, shelf, halves(list(model)))
    assert arena.header[BLOCKS + COUNT] == arena.header[SETS + COUNT] == 0
    assert arena.header[USED] < most / 2, "segments that are nearly empty become one"


def test_a_table_grows_past_one_page_of_its_directory_and_gives_all_of_it_back():
    arena = Arena(2**28)
    before = arena.header[USED]
    shelf = open_shelf(arena, 0)
    rng = np.random.default_rng(1)
    handles = rng.integers(0, 2**63, 2_000_000, np.uint64)
    for start in range(0, len(handles), 2**14):
        part = handles[start : start + 2**14]
        done = arena.write(
            kernels.store, shelf, 0, part.view(np.uint32), part.view(np.uint32), int(COPIES)
        )
        assert done == (len(part), 0, 0)
    assert arena.cells[shelf + LEVEL] > 11 < arena.header[BLOCKS + LEVEL]
    assert arena.header[USED] * int(UNIT) * 4 < 64 * len(handles)
    for handle in handles[:: len(handles) // 500]:
        assert kernels.look_up(arena.cells, shelf, halves([int(handle)]))[1] == handle
    where = 0
    while where < sweeping.ALL_KEYS:
        where = arena.write(sweeping.sweep, shelf, where, 2**14)
    assert arena.header[BLOCKS + COUNT] == arena.header[SETS + COUNT] == 0
    # a slot's record, and the directory of the blocks' table, stay
    assert arena.header[USED] - before < 200


def test_engines_that_number_their_blocks_one_by_one_fill_segments_evenly():
    for step in (1, 2**16, 2**32, 2**48 - 1):
        arena = Arena(2**22)
        shelf = open_shelf(arena, 0)
        numbers = {number * step % HASHES: number + 1 for number in range(20_000)}
        blocks = {each: n * 0x9E3779B97F4A7C15 % HASHES for each, n in numbers.items()}
        assert store(arena, shelf, blocks) == len(blocks)
        assert arena.header[USED] < 220


def test_without_memory_a_store_stops_and_a_removal_goes_on():
    arena = Arena(2**18)
    shelf = open_shelf(arena, 0)
    rng = random.Random(4)
    pairs = {rng.randrange(HASHES): rng.randrange(HASHES) for _ in range(9000)}
    done = store(arena, shelf, pairs)
    handles = list(pairs)
    assert 3500 < done < 9000
    assert arena.take_pressed()
    assert held(arena, shelf, handles[done - 5 : done + 5]) == [
        *[pairs[handle] for handle in handles[done - 5 : done]],
        *[None] * 5,
    ]
    assert arena.write(kernels.remove_copies, shelf, halves(handles)) == 9000 - done
    assert arena.header[BLOCKS + COUNT] == 0


def test_units_given_back_are_used_again():
    arena = Arena(2**22)
    rng = random.Random(5)
    for slot in range(5):
        shelf = open_shelf(arena, slot)
        store(arena, shelf, {rng.randrange(HASHES): rng.randrange(HASHES) for _ in range(5000)})
        fresh = arena.header[FRESH]
        arena.write(sweeping.sweep, shelf, 0, 10**6)
        assert arena.header[FREE]
        assert fresh < 80


@pytest.mark.parametrize("replicas", [31, 64, 300, 1000])
def test_a_match_over_many_replicas_finds_each_ones_own_length(replicas):
    rng = random.Random(replicas)
    index = MemoryIndex(clock=lambda: 0.0)
    tokens = list(range(4 * 80))
    lengths = {f"r{number}": rng.randrange(81) for number in range(replicas)}
    for replica_id, length in lengths.items():
        index.store(replica_id, stored(range(1, length + 1), tokens[: 4 * length]))
    gone = rng.sample(sorted(lengths), replicas // 3)
    for replica_id in gone:
        index.forget(replica_id)
    expected = {known: length for known, length in lengths.items() if length and known not in gone}
    assert index.match(prefix(tokens)) == expected


def test_a_reader_elsewhere_matches_in_the_same_memory_and_sees_by_the_version_what_changed():
    """Another process maps the memory; here a second mapping of it stands for that."""
    file = os.memfd_create("index")
    maps: list[mmap.mmap] = []

    def allocate(size: int) -> mmap.mmap:
        os.ftruncate(file, size)
        maps.append(mmap.mmap(file, size))
        return maps[0]

    index = MemoryIndex(clock=lambda: 0.0, max_bytes=2**20, allocate=allocate)
    reader = mmap.mmap(file, 2**20, prot=mmap.PROT_READ)
    os.close(file)
    cells = np.frombuffer(reader, np.uint32)
    tokens = list(range(40))
    index.store("a", stored([1, 2, 3], tokens[:12]))
    index.store("b", stored([1, 2], tokens[:8]))
    found = np.empty(3 * int(cells[SLOTS_USED]) + 2, np.uint32)
    version = int(cells[VERSION])
    assert version % 2 == 0
    count = kernels.match(cells, halves(prefix(tokens)), found)
    assert sorted(found[: 2 * count].reshape(-1, 2).tolist()) == [[0, 3], [1, 2]]
    assert version == cells[VERSION]
    index.remove("b", removed(2))
    assert cells[VERSION] == version + 2
    count = kernels.match(cells, halves(prefix(tokens)), found)
    assert sorted(found[: 2 * count].reshape(-1, 2).tolist()) == [[0, 3], [1, 1]]
    assert kernels.match(cells, halves(prefix(tokens)), found[:4]) == -1


@pytest.mark.parametrize("seed", range(4))
def test_a_match_in_memory_that_is_being_written_ends_and_stays_inside(seed):
    """Any cells may be of another moment; what comes out is then thrown away."""
    rng = np.random.default_rng(seed)
    index = MemoryIndex(clock=lambda: 0.0, max_bytes=2**18)
    tokens = list(range(4 * 600))
    index.store("a", stored(range(600), tokens))
    cells = index._arena.cells.copy()
    asked = halves(prefix(tokens))
    found = np.empty(3 * int(cells[SLOTS_USED]) + 2, np.uint32)
    kept = cells.copy()
    for _ in range(300):
        torn = rng.integers(int(UNIT), int(cells[UNITS]) * int(UNIT), 2000)
        cells[torn] = rng.integers(0, 2**32, len(torn), np.uint32)
        assert kernels.match(cells, asked, found) <= 1
        cells[:] = kept


def test_what_is_compiled_is_plain_python():
    """The contract suite's beginning, with the compiler switched off."""
    chosen = "several_blocks or twice or another_block or forgotten_replica or first_hole"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:randomly"]
    command += ["-k", f"({chosen}) and not crowded", "tests/contract/index"]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.startswith("........")


def test_an_index_is_made_where_nothing_can_be_written(tmp_path):
    """Without a cache it compiles in memory; with one that can only be read, it reads it."""
    code = (
        "import numba, router.cache_folder as folder, router.compiled as compiled\n"
        "def refuse(self): raise OSError('read-only')\n"
        "folder.CacheFolder.ensure_cache_path = refuse\n"
        "made = []\n"
        "compile = numba.core.compiler.compile_extra\n"
        "numba.core.compiler.compile_extra = lambda *a, **k: made.append(1) or compile(*a, **k)\n"
        "compiled.compile_all()\n"
        "print(len(made))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0\n", done.stderr
