"""What one process has sent the others of its host expect: no prefix need be computed twice."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.reservations import Reservation, Reservations
from router.index.residency import STRIDE, common_blocks
from router.shared import LoadBoard
from router.shared.coming import ENTRIES, MARKS
from tests.support.builders import ManualClock

PROMPT = tuple(range(2**64 - 600, 2**64 - 88))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def boards(tmp_path, clock):
    made = [LoadBoard(tmp_path / "load", slot, 2, clock) for slot in range(2)]
    yield made
    for board in made:
        board.close()


@pytest.fixture
def two(boards, clock):
    pair = [Reservations(clock, siblings=board) for board in boards]
    pair[1].load("r1")
    return pair


def sent(prefix, replica_id="r1"):
    return Reservation(replica_id, 100, 50.0, tuple(prefix), 0.0)


def test_anothers_prefix_is_expected_until_the_last_request_for_it_is_over(two):
    one, other = two
    first, second = sent(PROMPT), sent(PROMPT)
    one.take(first)
    one.take(second)
    assert other.expected(PROMPT) == {"r1": len(PROMPT)}
    one.release(first)
    assert other.expected(PROMPT) == {"r1": len(PROMPT)}
    one.release(second)
    one.release(second)
    assert other.expected(PROMPT) == {}


@given(shared=st.integers(1, 60), mine=st.integers(0, 60), theirs=st.integers(0, 60))
def test_what_is_expected_is_what_prefixes_share_to_within_a_stride(
    tmp_path_factory, shared, mine, theirs
):
    path, clock = tmp_path_factory.mktemp("board") / "load", ManualClock()
    boards = [LoadBoard(path, slot, 2, clock) for slot in range(2)]
    one, other = (Reservations(clock, siblings=board) for board in boards)
    other.load("r1")
    a = [*range(1, shared + 1), *range(1000, 1000 + theirs)]
    b = [*range(1, shared + 1), *range(2000, 2000 + mine)]
    one.take(sent(a))
    found, real = other.expected(b)["r1"], common_blocks(a, b)
    assert real - STRIDE < found <= real
    for board in boards:
        board.close()


def test_of_a_very_long_prefix_the_beginning_is_told(two):
    one, other = two
    prompt = tuple(range(1, MARKS * STRIDE + 100))
    one.take(sent(prompt))
    assert other.expected(prompt[:-1]) == {"r1": MARKS * STRIDE}


def test_a_process_that_ended_has_nothing_coming(two, boards):
    two[0].take(sent(PROMPT))
    boards[1].clear(0)
    assert two[1].expected(PROMPT) == {}


def test_entries_are_used_again_and_what_is_beyond_them_is_not_told(two):
    one, other = two
    claims: list[Reservation] = []
    for _ in range(3):
        claims = [sent((number, 1000 + number)) for number in range(1, ENTRIES + 10)]
        for claim in claims:
            one.take(claim)
        told = sum(bool(other.expected(claim.prefix)) for claim in claims)
        assert told == ENTRIES
        for claim in claims:
            one.release(claim)
    assert not any(other.expected(claim.prefix) for claim in claims)


@pytest.mark.parametrize("kind", [tuple, lambda prefix: array("Q", prefix)])
@pytest.mark.parametrize("blocks", [1, 5, STRIDE + 3, STRIDE * 7, len(PROMPT)])
def test_a_whole_beginning_of_the_prompt_counts_to_its_last_block(two, blocks, kind):
    one, other = two
    one.take(Reservation("r1", 100, 50.0, kind(PROMPT[:blocks]), 0.0))
    assert other.expected(PROMPT) == {"r1": blocks}
    assert other.expected(kind(PROMPT[:blocks])) == {"r1": blocks}
    parted = (*PROMPT[: blocks // STRIDE * STRIDE], *range(1000))
    assert blocks < STRIDE or other.expected(parted) == {"r1": blocks // STRIDE * STRIDE}


def test_roots_are_found_of_every_process_but_our_own(tmp_path, clock):
    boards = [LoadBoard(tmp_path / "all", slot, 4, clock) for slot in range(4)]
    hosts = [Reservations(clock, siblings=board) for board in boards]
    for host in hosts:
        host.load("r1")
    for number, host in enumerate(hosts):
        claim = sent((1000 + number, 7))
        host.take(claim)
        mine = [board.expected((1000 + number, 7)) for board in boards]
        assert mine == [{} if other == number else {"r1": 2} for other in range(4)]
        host.release(claim)
        assert not any(board.expected((1000 + number, 7)) for board in boards)
    for board in boards:
        board.close()


def test_of_what_is_computed_at_once_nothing_is_worth_waiting_for(two, boards):
    one, other = two
    short = Reservation("r1", 7, 0.7, PROMPT, 0.0, is_short=True)
    one.take(short)
    assert other.expected(PROMPT) == {}
    assert boards[1].begun == 1
    one.take(long := sent(PROMPT))
    one.release(short)
    assert other.expected(PROMPT) == {"r1": len(PROMPT)}
    one.release(long)
    assert other.expected(PROMPT) == {}
    assert boards[1].begun == 2
