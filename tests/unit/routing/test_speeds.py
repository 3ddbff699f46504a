"""Who is slow is known soon, and who only looks it, by chance, is not taken for it."""

from random import Random

import pytest

from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import POLICIES, Ask, Chooser, Contender, Prefix, Speeds, Ttft
from router.routing.ttft import Sample
from tests.support.builders import ManualClock

TRUTH = Ttft(15.0, 0.03, 0.1, 0.005, 5.0, 0.9)
NAMES = ("r1", "r2", "r3", "slow")


def took(tokens, times=1.0):
    return Sample(tokens, 0, 0, times * TRUTH.predict_ms(tokens, 0.0, 0))


def slower(speeds, one, other, late=0.0):
    own, theirs = speeds.of(one, "m", late), speeds.of(other, "m")
    return own.predict_ms(3000, 0.0, 0) / theirs.predict_ms(3000, 0.0, 0)


def fast_ones(speeds, rng, rounds):
    for _ in range(rounds):
        for name in NAMES[:3]:
            tokens = rng.randrange(300, 3300)
            speeds.observe(name, "m", took(tokens, rng.lognormvariate(0, 0.05)))


@pytest.mark.parametrize("seed", range(5))
def test_two_answers_of_a_slow_replica_are_enough(seed):
    speeds, rng = Speeds(), Random(seed)
    fast_ones(speeds, rng, 5)
    for _ in range(2):
        speeds.observe("slow", "m", took(3000, 3.0))
    assert slower(speeds, "slow", "r1") > 1.7


@pytest.mark.parametrize("seed", range(5))
def test_one_that_has_answered_nothing_is_slow_when_it_is_late(seed):
    speeds, rng = Speeds(), Random(seed)
    fast_ones(speeds, rng, 5)
    assert slower(speeds, "slow", "r1") == pytest.approx(1.0, abs=0.05)
    assert slower(speeds, "slow", "r1", late=1.2) == slower(speeds, "slow", "r1")
    assert 1.2 < slower(speeds, "slow", "r1", late=2.5) < 2.5


def test_one_that_is_known_is_not_slow_for_one_late_prompt():
    speeds = Speeds()
    fast_ones(speeds, Random(1), 20)
    assert slower(speeds, "r2", "r1", late=8.0) < 1.1


@pytest.mark.parametrize("seed", range(10))
def test_the_first_answers_of_equal_replicas_do_not_tell_them_apart(seed):
    speeds, rng = Speeds(), Random(seed)
    for _ in range(6):
        for name in NAMES:
            tokens = rng.randrange(300, 3300)
            speeds.observe(name, "m", took(tokens, rng.lognormvariate(0, 0.2)))
            found = [slower(speeds, other, "r1") for other in NAMES]
            assert max(found) / min(found) < 1.25


def test_replicas_that_answered_at_different_times_are_compared_by_one_model():
    speeds, fast = Speeds(), 0.2  # of what the model begins with
    for name, count in (("r1", 1), ("r2", 12), ("r3", 3)):
        for _ in range(count):
            speeds.observe(name, "m", Sample(2000, 0, 0, fast * 220.0))
    assert slower(speeds, "r1", "r2") == pytest.approx(1.0, rel=0.02)
    assert slower(speeds, "r3", "r2") == pytest.approx(1.0, rel=0.02)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def chooser(clock):
    return Chooser(
        index=MemoryIndex(clock=clock),
        reservations=Reservations(clock),
        speeds=Speeds(),
        policy=POLICIES["cache-aware"](Random(7)),
        clock=clock,
    )


def choose(chooser, number, names=NAMES):
    prefix = Prefix(tuple(1000 * number + block for block in range(40)), 50)
    return chooser.consider(Ask(2000), [Contender(name, "m", prefix) for name in names])


def send(chooser, number, name):
    return chooser.claim(choose(chooser, number), name)


def test_an_answer_teaches_before_the_next_one_comes(chooser, clock):
    claim = send(chooser, 1, "r1")
    before = choose(chooser, 2).candidates["r1"].ttft
    clock.advance(0.04)
    claim.first_token()
    assert choose(chooser, 2).candidates["r1"].ttft == before  # others may be of the same step
    clock.advance(0.005)
    after = choose(chooser, 2).candidates["r1"].ttft
    assert after.predict_ms(2000, 0.0, 0) < 0.5 * before.predict_ms(2000, 0.0, 0)


def test_what_waits_is_priced_by_what_is_known_now(chooser, clock):
    first, *_ = [send(chooser, number, "r1") for number in range(3)]
    before_ms = choose(chooser, 9).candidates["r1"].wait_ms
    clock.advance(0.9)
    first.first_token()
    clock.advance(0.1)
    after = choose(chooser, 9).candidates["r1"]
    assert after.ttft.predict_ms(2000, 0.0, 0) > 2 * 220.0
    assert after.wait_ms > before_ms


def test_a_queue_whose_head_is_late_is_longer_than_was_booked(chooser, clock):
    for number in range(40):  # equal replicas, that take 65 ms
        claims = [send(chooser, 10 * number + k, name) for k, name in enumerate(NAMES[:3])]
        clock.advance(0.065)
        for claim in claims:
            claim.first_token()
        clock.advance(0.1)
    for number in (7001, 7002):
        send(chooser, number, "slow")
    booked = choose(chooser, 9).candidates["slow"].wait_ms
    clock.advance(0.15)
    late = choose(chooser, 9).candidates["slow"]
    assert late.wait_ms > 0.7 * booked  # though more than a step's time has passed
    assert choose(chooser, 9, ("r1", "slow")).decision.replicas[0] == "r1"
