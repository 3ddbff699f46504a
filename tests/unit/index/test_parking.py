"""The lot in which blocks wait for their parents."""

import pytest

from router.index.parking import ParkingLot
from tests.support.events import stored


def test_children_come_out_in_the_order_in_which_they_went_in():
    lot = ParkingLot(10, 10.0)
    events = [stored([n], [0] * 4, parent=1) for n in (5, 6, 7)]
    for event in events:
        lot.park(event, 0.0)
    assert [parked.event for parked in lot.take_children(1)] == events
    assert len(lot) == 0
    assert lot.take_children(1) == []


def test_age_counts_from_parking():
    lot = ParkingLot(10, 10.0)
    lot.park(stored([2], [0] * 4, parent=1), 0.0)
    lot.park(stored([3, 4], [0] * 8, parent=1), 5.0)
    assert lot.expire(10.0) == 0
    assert lot.expire(10.1) == 1
    assert [parked.event.block_hashes for parked in lot.take_children(1)] == [(3, 4)]
    assert lot.expire(99.0) == 0


def test_the_start_of_a_prompt_is_not_parked():
    with pytest.raises(ValueError, match="start of a prompt"):
        ParkingLot(10, 10.0).park(stored([1], [0] * 4), 0.0)


def test_removals_are_noted_for_what_waits_and_for_nothing_else():
    lot = ParkingLot(10, 10.0)
    lot.park(stored([2, 3], [0] * 8, parent=1), 0.0)
    assert lot.note_removed(3)
    assert not lot.note_removed(1)
    (parked,) = lot.take_children(1)
    assert parked.removed == [3]
    assert not lot.note_removed(3)
