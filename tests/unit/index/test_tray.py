"""The tray of a shelf, the removals that wait, and what prompts see of trays, against plain
models."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.index import MemoryIndex
from router.index.lying import Lying
from router.index.tray import Part, Removals, Tray
from tests.support.events import removed, stored

HANDLES = st.lists(st.integers(0, 30), min_size=1, max_size=8)
CHAINS = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)


@given(st.lists(st.tuples(HANDLES, st.integers(0, 50), st.none() | st.integers(0, 30))))
def test_a_tray_is_a_dict_of_blocks_and_depths(steps):
    tray = Tray()
    model: dict[int, tuple[int, int]] = {}
    for step, (handles, depth, parent) in enumerate(steps):
        blocks = [1000 * step + place for place in range(len(handles))]
        is_new = len(set(handles)) == len(handles) and not model.keys() & set(handles)
        assert tray.claim(handles) is is_new
        if not is_new:
            break
        if parent in model:
            depth = model[parent][1] + 1
        tray.add(Part(1, depth, list(handles), blocks), parent)
        pairs = zip(blocks, range(depth, depth + len(blocks)), strict=True)
        model.update(zip(handles, pairs, strict=True))
    else:
        assert {handle: tray.find(handle) for handle in range(31)} == {
            handle: model.get(handle) for handle in range(31)
        }
        assert len(tray) == len(model)
    together = zip(tray.blocks(), tray.depths().tolist(), strict=True)
    assert dict(zip(tray.handles(), together, strict=True)) == model


@given(st.lists(HANDLES))
def test_removals_are_kept_in_order_and_as_often_as_they_came(parts):
    removals = Removals()
    for part in parts:
        removals.add(part)
        assert all(handle in removals for handle in part)
    assert 99 not in removals
    assert removals.handles() == [handle for part in parts for handle in part]
    assert len(removals) == len(removals.handles())


def hashes(chain: tuple[int, ...]) -> list[int]:
    """A block's name holds all that precedes it, as its hash does."""
    return [hash(("block", chain[:end])) for end in range(1, len(chain) + 1)]


@given(
    parts=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), CHAINS, st.integers(0, 5))),
    prompt=CHAINS,
    cuts=st.lists(st.integers(1, 8), max_size=3),
)
def test_stretches_of_a_prompt_in_trays_are_those_that_a_search_finds(parts, prompt, cuts):
    lying = Lying()
    held: dict[int, set[int]] = {}
    for bit, chain, start in parts:
        blocks = hashes(chain)[start:]
        if blocks:
            lying.add(Part(bit, start, list(blocks), blocks))
            held.setdefault(bit, set()).update(blocks)
    prefix = hashes(prompt)
    extents = lying.extents(prefix)
    asked = sum(held)
    for start, end in pairwise(sorted({0, *cuts, len(prefix)})):
        if end > len(prefix):
            break
        still, short = extents.split(asked, start, end)
        found = dict(short)
        for bit, lying_blocks in held.items():
            if asked & bit:
                until = start
                while until < end and prefix[until] in lying_blocks:
                    until += 1
                assert bool(still & bit) == (until == end)
                assert found.get(bit, start) == until or until == end
        asked = still


def test_parts_that_are_put_away_are_seen_no_longer():
    lying, prefix = Lying(), hashes((0, 1, 1))
    parts = [Part(bit, 0, list(prefix), list(prefix)) for bit in (1, 2)]
    for part in parts:
        lying.add(part)
    lying.take_out(parts[:1])
    assert lying.extents(prefix).mask == 2
    lying.take_out(parts[1:])
    assert lying.extents(prefix).mask == 0


def test_blocks_that_come_and_go_do_not_fill_a_tray_for_ever():
    index = MemoryIndex(clock=lambda: 0.0)
    for number in range(3000):
        index.store("a", stored([number, -1 - number], list(range(8))))
        index.remove("a", removed(number, -1 - number))
    tray = index._replicas["a"].shelves[None].tray
    assert len(index) == 0
    assert len(tray) < 10
    assert index.bytes < 100_000


def test_engines_that_say_each_block_by_itself_fill_few_parts():
    index = MemoryIndex(clock=lambda: 0.0)
    for number in range(1000):
        parent = number - 1 if number else None
        index.store("a", stored([number], [0, 1, 2, 3], parent))
    assert len(index._replicas["a"].shelves[None].tray.parts) == 1
