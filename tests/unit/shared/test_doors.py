"""Who accepts what comes to a slot whose process is away."""

import pytest

from router.shared.doors import Doors


@pytest.fixture
def doors(tmp_path):
    pair = [Doors(tmp_path / "doors", 3) for _ in range(2)]
    yield pair
    for each in pair:
        each.close()


def test_every_process_keeps_its_own_door_and_the_next_one_those_that_are_shut(doors):
    one, other = doors
    assert other.keeper_of(0) is None
    for slot in range(3):
        one.open(slot)
    assert [other.keeper_of(slot) for slot in range(3)] == [0, 1, 2]
    one.shut(1)
    assert [other.keeper_of(slot) for slot in range(3)] == [0, 2, 2]
    other.shut(2)
    assert [one.keeper_of(slot) for slot in range(3)] == [0, 0, 0]
    one.open(1)
    assert [other.keeper_of(slot) for slot in range(3)] == [0, 1, 0]
