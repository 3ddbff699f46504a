"""The tray of a shelf, and the removals that wait, against plain dicts and lists."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.index import MemoryIndex
from router.index.tray import Removals, Tray
from tests.support.events import removed, stored

HANDLES = st.lists(st.integers(0, 30), max_size=8)


@given(st.lists(st.tuples(st.sampled_from(["add", "pop"]), HANDLES, st.integers(0, 50))))
def test_a_tray_is_a_dict_of_blocks_and_depths(steps):
    tray = Tray()
    model: dict[int, tuple[int, int]] = {}
    for step, (kind, handles, depth) in enumerate(steps):
        if kind == "pop":
            for handle in set(handles) & model.keys():
                assert tray.pop(handle) == model.pop(handle)[0]
            continue
        blocks = [1000 * step + place for place in range(len(handles))]
        is_new = len(set(handles)) == len(handles) and not model.keys() & set(handles)
        assert tray.add_new(handles, blocks, depth) is is_new
        if is_new:
            pairs = zip(blocks, range(depth, depth + len(blocks)), strict=True)
            model.update(zip(handles, pairs, strict=True))
    assert {handle: tray.find(handle) for handle in range(31)} == {
        handle: model.get(handle) for handle in range(31)
    }
    together = zip(tray.blocks(), tray.depths().tolist(), strict=True)
    assert dict(zip(tray.handles(), together, strict=True)) == model


@given(st.lists(HANDLES))
def test_rounds_of_removals_bring_each_handle_as_often_as_it_was_added(parts):
    removals = Removals()
    for part in parts:
        removals.add(part)
        assert all(handle in removals for handle in part)
    assert 99 not in removals
    assert len(removals) == sum(map(len, parts))
    rounds = list(removals.rounds())
    assert all(len(set(handles)) == len(handles) for handles in rounds)
    assert Counter(h for handles in rounds for h in handles) == Counter(h for p in parts for h in p)


def test_blocks_that_come_and_go_do_not_fill_a_tray_for_ever():
    index = MemoryIndex(clock=lambda: 0.0)
    for number in range(3000):
        index.store("a", stored([number, -1 - number], list(range(8))))
        index.remove("a", removed(number, -1 - number))
    tray = index._replicas["a"].shelves[None].tray
    assert len(index) == 0
    assert tray.size < 4096
