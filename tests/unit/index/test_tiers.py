"""What slower tiers of a cache add to a match, and that they never pass for the engine's own."""

from router.index import Load, TieredIndex
from tests.support.events import prefix, removed, stored

TOKENS = list(range(16))  # four blocks
TIERS = {"STORAGE": 20.0, "CPU": 2.0}


def new_index(**tiers: float) -> TieredIndex:
    return TieredIndex(clock=lambda: 0.0, load_ms_per_ktoken=tiers or TIERS)


def beyond(index: TieredIndex) -> object:
    blocks = prefix(TOKENS)
    return index.beyond(blocks, index.match(blocks))


def test_a_tier_goes_on_where_the_engines_own_memory_ends():
    index = new_index()
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([1, 2, 3], TOKENS[:12], medium="CPU"))
    assert index.match(prefix(TOKENS)) == {"a": 2}
    assert beyond(index) == {"a": (Load("CPU", 1, 0.002),)}


def test_the_fastest_tier_comes_first_and_the_next_goes_on_behind_it():
    index = new_index()
    index.store("a", stored([1], TOKENS[:4], medium="CPU"))
    index.store("a", stored([1, 2, 3, 4], TOKENS, medium="STORAGE"))
    assert beyond(index) == {"a": (Load("CPU", 1, 0.002), Load("STORAGE", 3, 0.02))}


def test_a_tier_may_lack_what_lies_nearer():
    index = new_index()
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([1, 2, 3, 4], TOKENS, medium="CPU"))
    index.remove("a", removed(1, medium="CPU"))
    assert beyond(index) == {"a": (Load("CPU", 2, 0.002),)}
    index.remove("a", removed(3, medium="CPU"))
    assert beyond(index) == {}


def test_media_without_a_load_time_do_not_count():
    index = new_index(CPU=2.0)
    index.store("a", stored([1, 2], TOKENS[:8], medium="STORAGE"))
    assert beyond(index) == {}
    assert index.stats.out_of_reach == 2


def test_clearing_and_leaving_empty_all_tiers():
    index = new_index()
    for end in (index.clear, index.forget):
        index.store("a", stored([1], TOKENS[:4], medium="CPU"))
        assert beyond(index)
        end("a")
        assert beyond(index) == {}


def test_blocks_of_a_tier_take_bytes_of_the_one_bound():
    index = new_index()
    before = index.bytes
    index.store("a", stored([1, 2, 3, 4], TOKENS, medium="CPU"))
    assert index.bytes > before
    assert index.max_bytes == TieredIndex(clock=lambda: 0.0).max_bytes
