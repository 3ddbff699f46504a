from hypothesis import given, settings
from hypothesis import strategies as st

from router.tokens.memo import ENTRY_OVERHEAD_BYTES, Memo, _cost


def test_what_was_put_is_found():
    memo: Memo[str] = Memo(10_000)
    memo.put("a", b"ids!")
    assert memo.get("a") == b"ids!"
    assert memo.get("b") is None
    assert (memo.hits, memo.misses, len(memo)) == (1, 1, 1)


def test_many_are_looked_up_as_one_by_one():
    cost = _cost("k0", b"0000")
    memo: Memo[str] = Memo(4 * cost)
    for number in range(4):
        memo.put(f"k{number}", b"0000")
    assert memo.get_all(["k1", "nope", "k0", "k1"]) == [b"0000", None, b"0000", b"0000"]
    assert (memo.hits, memo.misses) == (3, 1)
    memo.put("k4", b"0000")
    assert memo.get_all(["k0", "k1", "k2", "k4"]) == [b"0000", b"0000", None, b"0000"]


def test_what_was_used_longest_ago_goes_first():
    cost = _cost("k0", b"0000")
    memo: Memo[str] = Memo(4 * cost)
    for number in range(4):
        memo.put(f"k{number}", b"0000")
    assert memo.get("k0") == b"0000"
    memo.put("k4", b"0000")
    assert memo.get("k1") is None
    assert [memo.get(f"k{number}") for number in (0, 2, 3, 4)] == [b"0000"] * 4


def test_an_entry_that_would_push_out_all_others_is_not_kept():
    memo: Memo[str] = Memo(10_000)
    memo.put("small", b"0000")
    memo.put("x" * 4000, b"0" * 4000)
    assert len(memo) == 1
    assert memo.get("small") == b"0000"


def test_no_room_means_no_memory():
    memo: Memo[bytes] = Memo(0)
    memo.put(b"a", b"0000")
    assert memo.get(b"a") is None
    assert memo.size_bytes == 0


@settings(deadline=None)
@given(
    max_bytes=st.integers(0, 4000),
    puts=st.lists(st.tuples(st.text(max_size=30), st.binary(max_size=60)), max_size=60),
)
def test_size_is_counted_and_never_exceeds_the_bound(max_bytes, puts):
    memo: Memo[str] = Memo(max_bytes)
    for key, ids in puts:
        memo.put(key, ids)
        assert memo.size_bytes <= max_bytes
        assert memo.size_bytes >= len(memo) * ENTRY_OVERHEAD_BYTES
    kept = [(key, ids) for key, _ in puts if (ids := memo.get(key)) is not None]
    assert memo.size_bytes == sum(_cost(key, ids) for key, ids in set(kept))
