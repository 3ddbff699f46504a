"""Which verdict each frame number gets."""

import pytest

from router.events import SequenceTracker, Verdict


def payload(seq: int, life: int = 0) -> bytes:
    return f"{life}/{seq}".encode()


def tracker_after(*seqs: int) -> SequenceTracker:
    tracker = SequenceTracker()
    for seq in seqs:
        assert tracker.observe(seq, payload(seq)) is Verdict.NEXT
    return tracker


def test_numbers_that_follow_on_from_0_are_next():
    tracker = tracker_after(0, 1, 2)
    assert tracker.expected == 3
    assert tracker.last == 2


@pytest.mark.parametrize("first", [1, 2, 4711, 2**63])
def test_a_first_number_above_0_is_a_gap(first):
    tracker = SequenceTracker()
    assert tracker.observe(first, payload(first)) is Verdict.GAP
    assert tracker.last is None


def test_a_gap_stays_one_until_it_is_filled_or_skipped():
    tracker = tracker_after(0, 1)
    assert tracker.observe(4, payload(4)) is Verdict.GAP
    assert tracker.observe(4, payload(4)) is Verdict.GAP
    assert tracker.observe(2, payload(2)) is Verdict.NEXT
    tracker.skip_to(4)
    assert tracker.observe(4, payload(4)) is Verdict.NEXT


def test_the_same_bytes_again_are_a_duplicate():
    tracker = tracker_after(*range(10))
    for seq in (9, 0, 5, 9):
        assert tracker.observe(seq, payload(seq)) is Verdict.DUPLICATE
    assert tracker.expected == 10


@pytest.mark.parametrize("seq", [0, 1, 5, 9])
def test_other_bytes_under_a_used_number_are_a_restart(seq):
    tracker = tracker_after(*range(10))
    assert tracker.observe(seq, payload(seq, life=1)) is Verdict.RESTART


def test_an_engine_that_restarts_after_its_very_first_frame_is_noticed():
    assert tracker_after(0).observe(0, payload(0, life=1)) is Verdict.RESTART


def test_a_number_too_old_to_be_remembered_is_taken_for_a_restart():
    tracker = tracker_after(*range(16_384 + 5))
    assert tracker.observe(5, payload(5)) is Verdict.DUPLICATE
    assert tracker.observe(4, payload(4)) is Verdict.RESTART


def test_numbers_before_a_skip_are_not_remembered():
    tracker = tracker_after(0, 1)
    tracker.skip_to(100)
    assert tracker.last is None
    assert tracker.observe(100, payload(100)) is Verdict.NEXT
    assert tracker.observe(1, payload(1)) is Verdict.RESTART


def test_after_a_restart_0_is_next():
    tracker = tracker_after(0, 1, 2)
    tracker.restart()
    assert tracker.observe(0, payload(0, life=1)) is Verdict.NEXT
    assert tracker.observe(1, payload(1, life=1)) is Verdict.NEXT
