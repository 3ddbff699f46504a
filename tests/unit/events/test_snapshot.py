"""A copy of the index as bytes: whole, and made with turns for others."""

import asyncio

import pytest

from router.events.snapshot import (
    ReplicaSnapshot,
    UnreadableSnapshot,
    decode_snapshot,
    encode_in_turns,
)
from router.index import MemoryIndex
from tests.support.events import BLOCK_SIZE, stored


def copies(count):
    index = MemoryIndex(clock=lambda: 0.0)
    for number in range(count):
        index.store(f"r{number}", stored([1, 2], range(2 * BLOCK_SIZE)))
    return [ReplicaSnapshot(f"r{n}", n, 7 * n, index.dump(f"r{n}"), "why") for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_snapshot_is_read_as_it_was_taken(count):
    taken = copies(count)
    raw = await encode_in_turns(taken)
    assert decode_snapshot(raw) == {each.replica_id: each for each in taken}
    with pytest.raises(UnreadableSnapshot):
        decode_snapshot(raw[:-1])


async def test_others_get_a_turn_after_each_replica():
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await encode_in_turns(copies(20))
    task.cancel()
    assert turns >= 20
