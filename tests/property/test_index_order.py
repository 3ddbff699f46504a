"""Stored events may come in any order: children wait for their parents."""

from hypothesis import given
from hypothesis import strategies as st

from router.blocks import BlockStored
from router.index import MemoryIndex
from tests.support.events import BLOCK_SIZE, prefix, stored

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=6)


@given(prompts=PROMPTS, data=st.data())
def test_any_order_of_stored_blocks_leaves_the_same_index(prompts, data):
    tokens = [[kind for kind in prompt for _ in range(BLOCK_SIZE)] for prompt in prompts]
    events: dict[int, BlockStored] = {}
    for ids in tokens:
        parent = None
        for number, handle in enumerate(prefix(ids)):
            block = ids[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE]
            events[handle] = stored([handle], block, parent)
            parent = handle
    index = MemoryIndex(clock=lambda: 0.0)
    for event in data.draw(st.permutations(list(events.values()))):
        index.store("a", event)
    assert index.blocks_of("a") == set(events)
    for ids in tokens:
        assert index.match(prefix(ids)) == {"a": len(ids) // BLOCK_SIZE}
    assert (index.stats.parked, index.stats.orphaned) == (0, 0)
