"""Moved sessions: for a time, bounded, and one's own latest move before what others say."""

from router.index.moved import Moved


def test_it_has_a_new_home_for_a_time():
    moved = Moved(ttl_s=10.0)
    moved.note("a", "r2", now=5.0)
    assert moved.home("a", 14.9) == "r2"
    assert moved.home("a", 15.0) is None
    assert moved.home("b", 5.0) is None


def test_of_too_many_those_moved_first_are_forgotten_and_not_told():
    moved = Moved(max_entries=2)
    for number in range(4):
        moved.note(f"s{number}", f"r{number}", 0.0)
    assert len(moved) == 2
    assert [moved.home(f"s{number}", 0.0) for number in range(4)] == [None, None, "r2", "r3"]
    assert [replica for _, replica in moved.untold(9)] == ["r2", "r3"]


def test_what_was_moved_again_while_it_was_told_is_told_again():
    moved = Moved()
    moved.note("a", "r1", 0.0)
    said = moved.untold(9)
    moved.note("a", "r2", 0.0)
    moved.told(said)
    assert [replica for _, replica in moved.untold(9)] == ["r2"]


def test_what_others_did_counts_unless_this_router_has_moved_it_since():
    one, two = Moved(), Moved()
    one.note("a", "r1", 0.0)
    two.hear(one.untold(9), 0.0)
    assert two.home("a", 0.0) == "r1"
    two.note("a", "r2", 0.0)
    two.hear(one.untold(9), 0.0)
    assert two.home("a", 0.0) == "r2"


def test_a_name_that_is_no_text_is_a_session_too():
    moved = Moved()
    moved.note("\udcff", "r1", 0.0)
    assert moved.home("\udcff", 0.0) == "r1"
