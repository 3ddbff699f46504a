"""How answers of a replay endpoint are put together."""

from collections.abc import Iterable

from router.events.replay import SURELY_WHOLE_FRAMES, ReplayRounds


def read_round(rounds: ReplayRounds, seqs: Iterable[int]) -> tuple[list[int], bool]:
    """(numbers handed on, ask again?) for one answer."""
    handed_on: list[int] = []
    for seq in seqs:
        if rounds.is_hole(seq):
            return handed_on, rounds.end_round(at_hole=True)
        if rounds.is_news(seq):
            handed_on.append(seq)
    return handed_on, rounds.end_round(at_hole=False)


def test_one_whole_answer_is_enough():
    assert read_round(ReplayRounds(3), [3, 4, 5]) == ([3, 4, 5], False)


def test_an_empty_answer_is_an_answer():
    assert read_round(ReplayRounds(3), []) == ([], False)


def test_the_first_number_may_be_later_than_asked_for():
    assert read_round(ReplayRounds(0), [7, 8]) == ([7, 8], False)


def test_after_a_hole_the_rest_is_asked_for_again_and_nothing_is_handed_on_twice():
    rounds = ReplayRounds(0)
    assert read_round(rounds, [0, 1, 4, 5]) == ([0, 1], True)
    assert rounds.wanted == 2
    assert read_round(rounds, [1, 2, 3, 4, 5]) == ([2, 3, 4, 5], False)


def test_frames_older_than_asked_for_are_skipped():
    assert read_round(ReplayRounds(5), [3, 4, 5]) == ([5], False)


def test_a_long_answer_may_have_lost_its_tail_so_the_next_number_is_asked_for():
    rounds = ReplayRounds(0)
    assert read_round(rounds, range(SURELY_WHOLE_FRAMES)) == (list(range(1000)), True)
    assert read_round(rounds, [1000, 1001]) == ([1000, 1001], False)


def test_a_frame_that_never_comes_stops_the_asking():
    rounds = ReplayRounds(0)
    assert read_round(rounds, [0, 2]) == ([0], True)
    rounds_needed = 0
    while not rounds.is_stuck:
        rounds_needed += 1
        assert read_round(rounds, [2, 3]) == ([], True)
    assert rounds_needed == 3
