"""Whatever an engine puts into its events, following it ends in an index or in MalformedFrame."""

import asyncio
from contextlib import suppress

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from router.blocks import Frame, MalformedFrame
from router.events import LinkUp, ReplicaTrust, follow
from router.index import MemoryIndex
from tests.support.events import ScriptedSource

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3)
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2) | st.integers(0, 3), inner, max_size=2)
    ),
    max_leaves=6,
)
GOOD = {
    "block_hashes": [1, 2],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_name": "x",
    "extra_keys": [["x", ["image", 0], "salt"], ["x"]],
    "group_idx": 0,
    "medium": "GPU",
}
FIELDS = st.dictionaries(st.sampled_from(sorted(GOOD)), JUNK, max_size=2)
EVENTS = st.builds(
    lambda tag, junk: {"type": tag} | GOOD | junk,
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    FIELDS,
)


@given(events=st.lists(EVENTS | JUNK, min_size=1, max_size=4))
def test_hostile_events_are_indexed_left_out_or_malformed(events):
    asyncio.run(follow_one(Frame(0, msgpack.packb([1.5, events, 0]))))


async def follow_one(frame: Frame) -> None:
    source = ScriptedSource([frame])
    index = MemoryIndex(clock=lambda: 0.0)
    task = asyncio.create_task(follow("a", source, index, ReplicaTrust("a")))
    source.say(LinkUp())
    drained = asyncio.create_task(source.drained())
    await asyncio.wait([task, drained], timeout=10.0, return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    drained.cancel()
    with suppress(asyncio.CancelledError, MalformedFrame):
        await task
    with suppress(asyncio.CancelledError):
        await drained
    assert index.replicas() == {}
