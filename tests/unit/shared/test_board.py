"""Processes of a host see each other's load at once, and a dead one's not at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.load import Load
from router.index.neighbours import COLUMNS
from router.index.reservations import Reservation, Reservations
from router.shared import LoadBoard
from router.shared.board import JUST_NOW_S, RETRY_S
from router.shared.cells import ROWS, added, load_of
from tests.support.builders import ManualClock

TOLD_FIELDS = (
    "queued_tokens",
    "wait_ms",
    "running",
    "waiting",
    "recent_ms",
    "mean_ms",
    "resident_tokens",
    "queued_pairs",
)


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


def test_pods_that_come_and_go_do_not_use_up_the_rows(boards, clock):
    one, two = (Reservations(clock, siblings=board) for board in boards[:2])
    for number in range(3 * ROWS):
        name = f"pod-{number}"
        claim = Reservation(name, 100, 50.0, (), clock())
        one.take(claim)
        assert two.load(name).queued_tokens == 100
        one.release(claim)
        one.forget(name)
        two.forget(name)
    assert [board.untold for board in boards] == [0, 0, 0]


def test_a_row_that_others_still_use_is_never_given_away(boards, clock):
    one, two, three = (Reservations(clock, siblings=board) for board in boards)
    kept = [Reservation(f"kept-{number}", 100, 50.0, (), clock()) for number in range(ROWS)]
    for claim in kept:
        one.take(claim)
    two.take(Reservation("more", 7, 5.0, (), clock()))
    assert boards[1].untold == 1
    assert three.load("more").queued_tokens == 0
    assert {two.load(claim.replica_id).queued_tokens for claim in kept} == {100}
    one.release(kept[5])
    one.forget("kept-5")
    clock.advance(RETRY_S)
    two.take(Reservation("more", 7, 5.0, (), clock()))
    assert three.load("more").in_flight == 2
    assert boards[1].untold == 0
    assert two.load("kept-6").in_flight == 1


def test_a_replica_that_left_with_requests_in_flight_is_forgotten_with_the_last(boards, clock):
    one, two = (Reservations(clock, siblings=board) for board in boards[:2])
    claims = [Reservation("r1", 100, 50.0, (1, 2), clock()) for _ in range(2)]
    for claim in claims:
        one.take(claim)
    one.forget("r1")
    assert two.load("r1").queued_tokens == 200
    for claim in claims:
        one.release(claim)
    assert one.own_loads() == {}
    assert boards[1].get("r1") is None


def test_whose_row_went_to_another_claims_a_new_one(boards, clock):
    one, two, three = (Reservations(clock, siblings=board) for board in boards)
    assert two.load("idle").in_flight == 0  # two knows its row; nobody has anything in it
    for number in range(ROWS):
        one.take(Reservation(f"r{number}", 1, 1.0, (), clock()))
    assert boards[0].untold == 0
    clock.advance(RETRY_S)
    two.take(Reservation("idle", 50, 5.0, (), clock()))
    assert boards[1].untold == 1
    assert sum(three.load(f"r{number}").in_flight for number in range(ROWS)) == ROWS


class Later:
    """What is to be done when what is being done now is done."""

    def __init__(self):
        self.works = []

    def __call__(self, work):
        self.works.append(work)

    def comes(self):
        works, self.works = self.works, []
        for work in works:
            work()


@pytest.fixture
def later():
    return Later()


@pytest.fixture
def teller(tmp_path, clock, later, boards):
    """The first process, which tells of small changes later."""
    board = LoadBoard(tmp_path / "load", 0, 3, clock, later)
    yield Reservations(clock, siblings=board)
    board.close()


def short(tokens, clock, replica_id="r1"):
    return Reservation(replica_id, tokens, 0.1 * tokens, (), clock(), is_short=True)


def test_a_prompt_that_is_not_short_is_told_at_once(boards, clock, teller):
    two = Reservations(clock, siblings=boards[1])
    teller.take(Reservation("r1", 100, 50.0, (), clock()))
    assert two.load("r1").in_flight == 1


def test_short_prompts_and_ends_are_told_all_together(boards, clock, teller, later):
    two = Reservations(clock, siblings=boards[1])
    claims = [short(40, clock) for _ in range(3)]
    for claim in claims:
        teller.take(claim)
    assert len(later.works) == 1
    later.comes()
    assert two.load("r1").waiting == 3
    for claim in claims:
        teller.computed(claim)
        teller.release(claim)
    assert len(later.works) == 1
    later.comes()
    assert two.load("r1").in_flight == 0


def test_a_long_prompt_tells_of_the_short_ones_before_it_too(boards, clock, teller, later):
    two = Reservations(clock, siblings=boards[1])
    teller.take(short(7, clock))
    teller.take(Reservation("r1", 1000, 50.0, (), clock()))
    assert two.load("r1").queued_tokens == 1007
    teller.take(short(8, clock, "r2"))
    later.comes()
    assert (two.load("r1").queued_tokens, two.load("r2").queued_tokens) == (1007, 8)


def test_of_a_replica_that_left_nothing_is_told_later(boards, clock, teller, later):
    claim = short(7, clock)
    teller.take(claim)
    teller.release(claim)
    teller.forget("r1")
    later.comes()
    assert boards[1].get("r1") is None


def test_what_was_read_for_a_choice_is_remembered_for_a_moment(boards, clock):
    one, two = (Reservations(clock, siblings=board) for board in boards[:2])
    assert two.load("r1").in_flight == 0
    one.take(Reservation("r1", 100, 50.0, (), clock()))
    assert boards[1].seen("r1") is None
    assert boards[1].seen("r2") is None
    clock.advance(2 * JUST_NOW_S)
    seen = boards[1].seen("r1")
    assert seen is not None
    assert seen.waiting == 1


_counts, _times = st.integers(0, 10**6), st.floats(0, 1e6)
_loads = st.builds(
    Load, _counts, _times, _counts, _counts, _times, _times, _counts, _times, _counts, _times
)


@given(ours=_loads, theirs=st.none() | _loads)
def test_our_own_and_theirs_are_added_as_loads_are(ours, theirs):
    told = np.zeros((2, COLUMNS))
    if theirs is not None:
        told[1] = [*(getattr(theirs, name) for name in TOLD_FIELDS), 1.0]
    expected = ours if theirs is None else ours.plus(load_of(told.data, 1))
    assert added([ours, ours], told.data) == [ours, expected]
