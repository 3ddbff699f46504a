"""Processes of a host see each other's load at once, and a dead one's not at all."""

import pytest

from router.index.load import Load
from router.index.reservations import Reservation, Reservations
from router.shared import LoadBoard
from tests.support.builders import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def boards(tmp_path, clock):
    made = [LoadBoard(tmp_path / "load", slot, 3, clock) for slot in range(3)]
    yield made
    for board in made:
        board.close()


def test_a_choice_is_the_others_load_from_the_same_instant(boards, clock):
    one, two, three = (Reservations(clock, siblings=board) for board in boards)
    claim = Reservation("r1", 100, 50.0, (), clock())
    one.take(claim)
    assert two.load("r1") == three.load("r1") == one.load("r1")
    assert two.load("r1").queued_tokens == 100
    other = Reservation("r1", 7, 5.0, (), clock())
    two.take(other)
    assert [r.load("r1").queued_tokens for r in (one, two, three)] == [107, 107, 107]
    one.computed(claim)
    assert (three.load("r1").running, three.load("r1").waiting) == (1, 1)
    one.release(claim)
    two.release(other)
    assert three.load("r1").in_flight == 0
    assert three.own_load("r1") == Load()


def test_what_others_wait_for_goes_on_while_they_say_nothing(boards, clock):
    one, two = (Reservations(clock, siblings=board) for board in boards[:2])
    one.take(Reservation("r1", 100, 50.0, (), clock()))
    clock.advance(0.02)
    assert two.load("r1").wait_ms == pytest.approx(30.0)
    clock.advance(29.98)
    assert two.load("r1").recent_ms == pytest.approx(25.0)


def test_a_process_that_ended_is_cleared_and_a_new_one_begins_empty(boards, clock, tmp_path):
    one, two = (Reservations(clock, siblings=board) for board in boards[:2])
    one.take(Reservation("r1", 100, 50.0, (), clock()))
    boards[2].clear(0)
    assert two.load("r1").in_flight == 0
    one.take(Reservation("r1", 100, 50.0, (), clock()))
    again = LoadBoard(tmp_path / "load", 0, 3, clock)
    assert two.load("r1").in_flight == 0
    again.close()


def test_replicas_keep_apart_up_to_the_last_row(boards, clock):
    one, two = (Reservations(clock, siblings=board) for board in boards[:2])
    for number in range(1030):
        one.take(Reservation(f"r{number}", number + 1, 1.0, (), clock()))
    seen = [two.load(f"r{number}").queued_tokens for number in range(1030)]
    assert seen[:1024] == list(range(1, 1025))
    assert seen[1024:] == [0] * 6
