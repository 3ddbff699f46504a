"""What one process says all others hear, once, also those that start later."""

import pytest

from router.shared.words import MOST_BYTES, WORDS, WordBoard


@pytest.fixture
def open_board(tmp_path):
    opened = []

    def make(slot):
        opened.append(WordBoard(tmp_path / "words", slot, 3, 64))
        return opened[-1]

    yield make
    for board in opened:
        board.close()


def test_each_word_is_heard_once_by_all_others_and_not_by_who_said_it(open_board):
    one, two, three = map(open_board, range(3))
    assert one.say(b"a")
    assert two.say(b"b")
    assert one.say(b"c")
    assert three.hear() == [b"a", b"c", b"b"]
    assert one.hear() == [b"b"]
    assert two.hear() == [b"a", b"c"]
    assert [one.hear(), two.hear(), three.hear()] == [[], [], []]


def test_who_listens_too_late_hears_the_last_ones(open_board):
    one, two = map(open_board, range(2))
    for number in range(WORDS + 5):
        one.say(str(number).encode())
    assert two.hear() == [str(number).encode() for number in range(5, WORDS + 5)]


def test_a_process_that_starts_hears_what_was_said_before_by_who_had_its_place_too(open_board):
    one, two = map(open_board, range(2))
    one.say(b"a")
    two.say(b"b")
    again = open_board(0)
    assert again.hear() == [b"a", b"b"]
    again.say(b"c")
    assert two.hear() == [b"a", b"c"]


@pytest.mark.parametrize(("size", "is_heard"), [(0, True), (MOST_BYTES, True), (257, False)])
def test_a_word_that_is_too_long_is_not_said(open_board, size, is_heard):
    one, two = map(open_board, range(2))
    assert one.say(b"x" * size) is is_heard
    assert two.hear() == ([b"x" * size] if is_heard else [])


def test_a_word_that_is_being_written_over_is_not_heard(open_board):
    one, two = map(open_board, range(2))
    one.say(b"first")
    one.say(b"second")
    one._memory[64 * 8 + 256 : 64 * 8 + 264] = bytes(8)  # the first word's number
    assert two.hear() == [b"second"]
