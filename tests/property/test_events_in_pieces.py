"""However events are joined or cut, the index ends as if each had been applied as it came."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from router.blocks import BlockRemoved, BlockStored, Event
from router.events.pieces import FEW, MOST_JOINED, in_pieces
from router.index import MemoryIndex
from router.index.stats import IndexStats
from tests.support.events import BLOCK_SIZE, removed

NODES = 24
UNKNOWN = 99
PARENTS = [
    None if node % 6 == 0 else node - 1 if node % 6 < 4 else node - 3 for node in range(NODES)
]
"""Four prompts that fork. Whatever a handle stands for, it is always the same."""


IMAGES = {3, 10}
"""Nodes with something beside their tokens."""


def block(node: int, **fields) -> BlockStored:
    return blocks([node], **fields)


def blocks(nodes: Sequence[int], **fields) -> BlockStored:
    """Of nodes that follow one another."""
    tokens = array("I", [number for node in nodes for number in [node] * BLOCK_SIZE])
    parent = fields.pop("parent") if "parent" in fields else PARENTS[nodes[0]]
    if IMAGES.intersection(nodes):
        fields["extra_keys"] = [[("image", node)] if node in IMAGES else None for node in nodes]
    if nodes[0] >= 18:
        fields["lora_name"] = "adapter"
    return BlockStored(tuple(nodes), parent, tokens, BLOCK_SIZE, **fields)


nodes = st.integers(0, NODES - 1)
a_block = st.builds(
    block,
    nodes,
    group_idx=st.sampled_from([None, None, 0, 1]),
    medium=st.sampled_from(["GPU", "GPU", None, "CPU"]),
)
events = st.lists(
    st.one_of(
        a_block,
        nodes.map(block),
        nodes.map(block),
        nodes.map(lambda node: blocks([n for n in range(node - node % 6, node + 1) if n % 6 < 4])),
        st.sampled_from([blocks([50], parent=UNKNOWN), blocks([51], parent=50)]),
        nodes.map(removed),
        st.none(),
    ),
    max_size=60,
)


def state(index: MemoryIndex) -> tuple[Any, IndexStats]:
    """What is held, and the counters; of what waits for its parent, not in how many events."""
    dump = index.dump("a")
    shelves = {}
    for shelf in dump.shelves:
        keys, depths = array("Q", shelf.keys), array("H", shelf.depths)
        held = zip(keys, array("Q", shelf.blocks), depths, strict=True)
        shelves[shelf.group] = sorted((*one, shelf.copies.get(one[0], 0)) for one in held)
    return shelves, replace(index.stats, parked=0)


def one_by_one(told: Iterable[Event | None]) -> MemoryIndex:
    index = MemoryIndex(clock=lambda: 0.0)
    for event in told:
        apply(index, event)
    return index


def apply(index: MemoryIndex, event: Event | None) -> None:
    if isinstance(event, BlockStored):
        index.store("a", event)
    elif isinstance(event, BlockRemoved):
        index.remove("a", event)


def in_pieces_of(told: Iterable[Event | None]) -> tuple[MemoryIndex, int]:
    """And how many of them came together with others."""
    index, together = MemoryIndex(clock=lambda: 0.0), 0
    for piece in in_pieces(told):
        if isinstance(piece, Sequence):
            index.store_all("a", piece)
            together += len(piece)
        else:
            apply(index, piece)
    return index, together


@given(events)
@example([block(node) for node in (0, 6, 12, 18)] + [block(node) for node in (1, 7, 13, 19)])
@example([block(0), block(2), block(7), block(13), block(1)])  # parents that come later
def test_the_index_ends_as_if_each_had_been_applied_as_it_came(told):
    assert state(in_pieces_of(told)[0]) == state(one_by_one(told))


@given(st.lists(nodes, max_size=40), st.sampled_from([16, 64]))
def test_blocks_of_other_sizes_too(told, size):
    def event(node: int) -> BlockStored:
        return BlockStored((node,), PARENTS[node], array("I", [node] * size), size)

    known = [event(node) for node in range(NODES)]
    all_of_them = [*known, *map(event, told)]
    assert state(in_pieces_of(all_of_them)[0]) == state(one_by_one(all_of_them))


def test_what_engines_tell_while_they_decode_is_stored_at_once():
    prompts = [BlockStored((n,), None, array("I", [n] * 4), 4) for n in range(1000, 1100)]
    grown = [BlockStored((-n,), n, array("I", [n] * 4), 4) for n in range(1000, 1100)]
    index, together = in_pieces_of([*prompts, *grown])
    assert together == len(grown) >= FEW
    assert len(index) == 200


def test_what_follows_one_another_is_one_event_of_bounded_length():
    count = 3 * MOST_JOINED
    told = [block(0), *(BlockStored((n + 1,), n, array("I", [n] * 4), 4) for n in range(count))]
    pieces = list(in_pieces(told))
    assert len(pieces) == 4
    assert state(in_pieces_of(told)[0]) == state(one_by_one(told))


def test_a_block_whose_number_is_negative_or_bytes_is_stored_too():
    roots = [BlockStored((n,), None, array("I", [n] * 4), 4) for n in range(8)]
    names: list[int | bytes] = [-1, b"x"] * 4
    odd = [BlockStored((name,), n, array("I", [n] * 4), 4) for n, name in enumerate(names)]
    told = [*roots, *odd]
    assert state(in_pieces_of(told)[0]) == state(one_by_one(told))


def test_a_copy_that_is_under_way_is_told():
    index = one_by_one([block(node) for node in range(0, NODES, 6)])
    before = state(index)[0]
    with index.copy("a") as copy:
        index.store_all("a", [block(node) for node in (1, 7, 13, 19)])
        while copy.step():
            pass
    (shelf,) = copy.dump().shelves
    assert sorted(array("Q", shelf.keys)) == [row[0] for row in before[None]]
