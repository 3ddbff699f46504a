"""What answers badly gets no requests for a while, then one."""

import pytest

from router.replicas import Pool
from router.replicas.breaker import Breaker, BreakerTimes, Position
from tests.support.builders import ManualClock, model_rows, replica


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def breaker(clock):
    return Breaker(clock, BreakerTimes(failures=3, open_s=5.0, longest_open_s=15.0))


def fail(breaker, times):
    for _ in range(times):
        breaker.failed(is_trial=False)


def test_it_opens_after_failures_in_a_row_and_not_before(breaker):
    fail(breaker, 2)
    breaker.passed(is_trial=False)
    fail(breaker, 2)
    assert breaker.allows
    fail(breaker, 1)
    assert breaker.position is Position.OPEN
    assert not breaker.allows


def test_a_busy_replica_with_one_bad_request_in_a_hundred_stays(breaker):
    for number in range(5000):
        if number % 100:
            breaker.passed(is_trial=False)
        else:
            breaker.failed(is_trial=False)
    assert breaker.position is Position.CLOSED


def test_when_its_time_is_over_one_request_tries_and_closes_it(breaker, clock):
    fail(breaker, 3)
    clock.advance(5.0)
    assert breaker.begin() is True
    assert not breaker.allows
    assert breaker.begin() is False
    breaker.passed(is_trial=True)
    assert breaker.position is Position.CLOSED


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_a_bound(breaker, clock):
    fail(breaker, 3)
    for pause_s in (5.0, 10.0, 15.0, 15.0):
        clock.advance(pause_s - 0.1)
        assert not breaker.allows
        clock.advance(0.1)
        assert breaker.begin() is True
        breaker.failed(is_trial=True)


def test_a_trial_whose_client_left_leaves_the_trial_to_the_next(breaker, clock):
    fail(breaker, 3)
    clock.advance(5.0)
    assert breaker.begin() is True
    breaker.dropped(is_trial=True)
    assert breaker.allows
    assert breaker.begin() is True


def test_ends_of_requests_from_before_change_nothing_while_it_is_open(breaker, clock):
    fail(breaker, 3)
    breaker.passed(is_trial=False)
    fail(breaker, 9)
    assert [breaker.position] == [Position.OPEN]
    clock.advance(5.0)
    assert breaker.begin() is True
    breaker.failed(is_trial=False)
    assert breaker.position is Position.HALF_OPEN


@pytest.fixture
def pool(clock):
    pool = Pool(clock, breaker_times=BreakerTimes(failures=1))
    pool.reconcile([replica("r1"), replica("r2")])
    for name in ("r1", "r2"):
        pool.mark_up(name, model_rows("m"))
    return pool


def ids(pool):
    return [member.id for member in pool.available("m")]


def test_an_open_breaker_takes_a_replica_out_of_the_choice_while_there_is_another(pool):
    pool.get("r1").breaker.failed(is_trial=False)
    assert ids(pool) == ["r2"]
    pool.get("r2").breaker.failed(is_trial=False)
    assert ids(pool) == ["r1", "r2"]


def test_a_full_replica_comes_back_when_its_time_is_over(pool, clock):
    pool.mark_full("r2", 2.0)
    assert ids(pool) == ["r1"]
    clock.advance(2.0)
    assert ids(pool) == ["r1", "r2"]


def test_a_replica_that_was_down_begins_anew(pool):
    pool.get("r1").breaker.failed(is_trial=False)
    pool.mark_down("r1", "killed")
    pool.mark_up("r1", model_rows("m"))
    assert ids(pool) == ["r1", "r2"]
