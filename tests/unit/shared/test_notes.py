"""Notes of all processes of a host: found by each, never wrong, bounded."""

import pytest

from router.index.moved import Moved
from router.shared import MemoryOwners, NoteBoard

IDS = ["a", "b", "c"]


@pytest.fixture
def boards(tmp_path):
    """Two processes of a host."""
    opened = [NoteBoard(tmp_path / "notes", slot, 2, 64, lambda: IDS) for slot in range(2)]
    yield opened
    for board in opened:
        board.close()


def test_what_one_process_notes_all_know_at_once(boards):
    one, two = boards
    assert two.get("x") is None
    one.put("x", "a", 10.0)
    assert one.get("x") == two.get("x") == ("a", 10.0)
    assert two.get("y") is None


def test_what_was_noted_last_holds_whoever_noted_it(boards):
    one, two = boards
    one.put("x", "a", 10.0)
    two.put("x", "b", 11.0)
    assert one.get("x") == ("b", 11.0)
    one.put("x", "c", 12.0)
    assert two.get("x") == ("c", 12.0)


def test_a_process_that_takes_another_ones_place_finds_its_notes(boards, tmp_path):
    one, two = boards
    one.put("x", "a", 10.0)
    again = NoteBoard(tmp_path / "notes", 0, 2, 64, lambda: IDS)
    assert again.get("x") == two.get("x") == ("a", 10.0)
    again.put("x", "b", 11.0)
    assert two.get("x") == ("b", 11.0)
    again.close()


def test_of_too_many_notes_those_go_that_would_end_first(boards):
    one, two = boards
    for number in range(1000):
        one.put(str(number), "a", float(number))
    found = [number for number in range(1000) if two.get(str(number)) is not None]
    assert 0 < len(found) <= 64
    # each place keeps its latest: all found are of the last ones, as far as places are even
    assert min(found) > 600
    assert two.get("999") == ("a", 999.0)


def test_a_replica_that_is_not_there_is_nowhere(boards, tmp_path):
    one, _ = boards
    one.put("x", "gone", 10.0)
    assert one.get("x") is None
    ids = ["a"]
    late = NoteBoard(tmp_path / "notes", 1, 2, 64, lambda: ids)
    one.put("y", "b", 10.0)
    assert late.get("y") is None
    ids.append("b")
    assert late.get("y") == ("b", 10.0)
    late.close()


def test_an_entry_that_is_half_written_is_not_found(boards, tmp_path):
    one, two = boards
    one.put("x", "a", 10.0)
    data = bytearray((tmp_path / "notes").read_bytes())
    at = next(i for i, byte in enumerate(data) if byte)
    for offset in (16, 24, 32):
        torn = bytearray(data)
        torn[at + offset] ^= 1
        (tmp_path / "notes").write_bytes(torn)
        assert two.get("x") is None
    (tmp_path / "notes").write_bytes(data)
    assert two.get("x") == ("a", 10.0)


async def test_a_response_that_one_process_saw_begin_is_known_in_the_others(boards):
    now = 0.0
    one, two = [MemoryOwners(lambda: now, 60.0, 64, board) for board in boards]
    one.note("resp_1", "b")
    assert await two.find("resp_1") == "b"
    assert await two.find("resp_2") is None
    assert two.counts == {"here": 1, "unknown": 1}
    now = 61.0
    assert await two.find("resp_1") is None


def test_a_session_that_one_process_moved_is_moved_for_all(boards):
    one, two = [Moved(60.0, 64, board) for board in boards]
    one.note("s", "b", 0.0)
    assert two.home("s", 1.0) == "b"
    two.note("s", "c", 2.0)
    assert one.home("s", 3.0) == two.home("s", 3.0) == "c"
    assert one.home("s", 63.0) is None
    assert one.home("other", 1.0) is None
