"""Routers of the index's host read it in its memory: what is true, or they ask."""

import asyncio
import multiprocessing
import time
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np
import pytest

from router.central import CAN_SHARE, Address, Place, SharedMemory
from router.central.memory import Window, prepare
from router.index import kernels
from router.index.arena import halves
from router.index.layout import MAGIC, MAX_SLOTS, UNITS, USED, VERSION
from router.index.memory import MemoryIndex
from tests.integration.central.test_asking import (
    PREFIX,
    TOKENS,
    asking,
    central,
    connected,
    listening,
)
from tests.support.events import BLOCK_SIZE, prefix, removed, stored
from tests.support.processes import until

pytestmark = pytest.mark.skipif(not CAN_SHARE, reason="needs memfd, and x86-64")
MAX_BYTES = 8 * 2**20


@pytest.fixture
def memory():
    made = SharedMemory()
    yield made
    made.close()


@asynccontextmanager
async def reading(memory, tmp_path, place: Place | None = None):
    """An index, and a router that is told where its memory is."""
    made = central(place=place or memory.place, allocate=memory.allocate, max_bytes=MAX_BYTES)
    async with listening(made, Address(path=str(tmp_path / "i"))), asking(made.address) as router:
        await connected(router)
        yield made, router


async def numbers_told(router, *replica_ids):
    async def told():
        return {*replica_ids} <= {*router._names.values()}

    await until(told)


async def test_what_is_read_is_what_the_index_says(memory, tmp_path):
    async with reading(memory, tmp_path) as (made, router):
        made.keeper.of("r1"), made.keeper.of("r2")
        made.index.store("r1", stored(range(1, 5), TOKENS[: 4 * BLOCK_SIZE]))
        made.index.store("r2", stored(range(1, 3), TOKENS[: 2 * BLOCK_SIZE]))
        await numbers_told(router, "r1", "r2")

        async def read():
            known, failure = await router.ask([PREFIX, prefix(range(100, 140))])
            assert failure == ""
            assert known.match(prefix(range(100, 140))) == {}
            assert known.match(PREFIX) == made.index.match(PREFIX)
            return known.match(PREFIX)

        assert await read() == {"r1": 4, "r2": 2}
        made.index.remove("r1", removed(3))
        assert await read() == {"r1": 2, "r2": 2}
        made.index.clear("r2")
        assert await read() == {"r1": 2}
        made.index.store("r2", stored(range(1, 4), TOKENS[: 3 * BLOCK_SIZE]))
        assert await read() == {"r1": 2, "r2": 3}
        made.index.forget("r1")
        assert await read() == {"r2": 3}
        # under its old name it is another one: known as soon as it is told of
        made.index.store("r1", stored(range(1, 5), TOKENS[: 4 * BLOCK_SIZE]))
        number = made.index.number_of("r1")

        async def told():
            return router._names.get(number) == "r1"

        await until(told)
        assert await read() == {"r1": 4, "r2": 3}
        assert router.outcomes == Counter({"in_place": 6})
        assert made.desk.counters.questions == 0


async def test_while_it_is_written_it_is_asked(memory, tmp_path):
    async with reading(memory, tmp_path) as (made, router):
        made.keeper.of("r1")
        made.index.store("r1", stored(range(1, 5), TOKENS[: 4 * BLOCK_SIZE]))
        await numbers_told(router, "r1")
        header = made.index._arena.header
        header[VERSION] += 1  # as a process leaves it that dies while it writes
        known, failure = await router.ask([PREFIX])
        assert (failure, known.match(PREFIX)) == ("", {"r1": 4})
        assert router.outcomes == Counter({"in_time": 1})
        header[VERSION] += 1
        await router.ask([PREFIX])
        assert router.outcomes == Counter({"in_time": 1, "in_place": 1})


@pytest.mark.parametrize("what", ["gone", "another file", "another layout"])
async def test_memory_that_can_not_be_read_is_asked_for(memory, tmp_path, what):
    place = memory.place
    if what == "gone":
        place = replace_place(place, path="/proc/self/fd/987654")
    elif what == "another file":
        place = replace_place(place, inode=place.inode + 1)
    async with reading(memory, tmp_path, place) as (made, router):
        if what == "another layout":
            made.index._arena.header[MAGIC] += 1
            router._window = None
            router._look_into(place)
        made.index.store("r1", stored(range(1, 5), TOKENS[: 4 * BLOCK_SIZE]))
        known, failure = await router.ask([PREFIX])
        assert (failure, known.match(PREFIX)) == ("", {"r1": 4})
        assert router.outcomes == Counter({"in_time": 1})


def replace_place(place: Place, **more) -> Place:
    return Place(**{**{name: getattr(place, name) for name in place.__struct_fields__}, **more})


async def test_without_its_index_nothing_is_read_and_the_next_one_s_memory_is_its_own(tmp_path):
    first, second = SharedMemory(), SharedMemory()
    address = Address(path=str(tmp_path / "i"))
    made = central(place=first.place, allocate=first.allocate, max_bytes=MAX_BYTES)
    made.keeper.of("r1")
    made.index.store("r1", stored(range(1, 5), TOKENS[: 4 * BLOCK_SIZE]))
    async with asking(address) as router:
        async with listening(made, address):
            await connected(router)
            await numbers_told(router, "r1")
            assert (await router.ask([PREFIX]))[0].match(PREFIX) == {"r1": 4}

        async def is_away():
            return not router.is_connected

        await until(is_away)
        assert await router.ask([PREFIX]) == (router_knows_nothing(), "down")
        made = central(place=second.place, allocate=second.allocate, max_bytes=MAX_BYTES)
        made.keeper.of("r2")
        made.index.store("r2", stored(range(1, 3), TOKENS[: 2 * BLOCK_SIZE]))
        async with listening(made, address):
            await connected(router)
            await numbers_told(router, "r2")
            assert (await router.ask([PREFIX]))[0].match(PREFIX) == {"r2": 2}
        assert router.outcomes == Counter({"in_place": 2, "down": 1})
    first.close()
    second.close()


def router_knows_nothing():
    from router.index.answers import NO_ANSWERS

    return NO_ANSWERS


LONG = list(range(512 * BLOCK_SIZE))


def keep_writing(pipe) -> None:
    """Another process: store a prompt of 512 blocks, remove it, in between others."""
    memory = SharedMemory()
    index = MemoryIndex(clock=time.monotonic, max_bytes=MAX_BYTES, allocate=memory.allocate)
    for number in range(64):
        index.store(f"other-{number}", stored(range(1, 9), LONG[: 8 * BLOCK_SIZE]))
    pipe.send((memory.place.path, memory.place.device, memory.place.inode))
    pipe.recv()
    ends, turns = time.monotonic() + 2.0, 0
    while time.monotonic() < ends:
        index.store("r", stored(range(1, 513), LONG))
        handles = range(1000 + 8 * turns, 1008 + 8 * turns)
        index.store(f"other-{turns % 64}", stored(handles, [turns, *LONG[: 8 * BLOCK_SIZE - 1]]))
        index.remove("r", removed(*range(1, 513)))
        if turns % 7 == 0:
            index.clear(f"other-{turns % 64}")
            index.tidy()
        turns += 1
    pipe.send((index.number_of("r"), turns))
    pipe.close()


async def test_nothing_is_read_that_was_never_true():
    prepare()
    blocks = prefix(LONG)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    writer = context.Process(target=keep_writing, args=(theirs,))
    writer.start()
    loop = asyncio.get_running_loop()
    window = Window(Place(*await loop.run_in_executor(None, ours.recv)))
    ours.send("go")
    seen: Counter[tuple[int, int]] = Counter()
    given_up = 0
    while not ours.poll():
        found = window.match(blocks)
        if found is None:
            given_up += 1
        else:
            seen.update(found)
    number, turns = ours.recv()
    await loop.run_in_executor(None, writer.join)
    depths = {depth for owner, depth in seen if owner == number}
    assert depths == {512}, (depths, turns, given_up)
    assert {depth for owner, depth in seen if owner != number} == {8}
    assert turns > 20
    assert seen[number, 512] > 20


async def test_whatever_lies_in_the_units_reading_them_leads_nowhere_else():
    """What a reader may find while units become something else, and worse."""
    prepare()
    index = MemoryIndex(clock=time.monotonic, max_bytes=MAX_BYTES)
    for number in range(40):
        tokens = [number, *LONG[: 64 * BLOCK_SIZE - 1]]
        handles = range(1000 * number + 1, 1000 * number + 65)
        index.store(f"r{number}", stored(handles, tokens))
    whole = index._arena.cells
    end = int(whole[USED]) << 11
    found = np.empty(3 * int(MAX_SLOTS) + 2, np.uint32)
    rng = np.random.default_rng(1)
    for _ in range(200):
        # an array of just this size: what lies behind it is not ours
        cells = whole[:end].copy()
        cells[UNITS] = end >> 11
        part = rng.random(end - 2048) < rng.choice([0.01, 0.5, 1.0])
        most = rng.choice([end >> 11, end, 2**32])
        cells[2048:][part] = rng.integers(0, most, int(part.sum()), dtype=np.uint64)
        for number in range(40):
            keys = prefix([number, *LONG[: 64 * BLOCK_SIZE - 1]])
            assert kernels.match(cells, halves(keys), found) <= 64
