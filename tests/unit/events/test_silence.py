"""When an engine's silence is a reason to look at it, and when it is none."""

from dataclasses import dataclass, field

import pytest

from router.events.keeper import Keeper
from router.events.silence import Silence
from router.events.trust import Trust
from router.index.memory import MemoryIndex
from router.replicas import Pool
from tests.support.builders import ManualClock, NoSources, model_rows, replica

AFTER_S, MOST_S = 1.0, 5.0


@dataclass
class Stage:
    """One replica whose stream, load and time the test plays."""

    clock: ManualClock
    pool: Pool
    keeper: Keeper
    load: int = 0
    doubts: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.silence = Silence(
            pool=self.pool,
            keeper=self.keeper,
            in_flight=lambda _: self.load,
            doubt=lambda _: self.doubts.append(self.clock()),
            clock=self.clock,
            after_s=AFTER_S,
            most_s=MOST_S,
        )
        self.began = self.clock()

    @property
    def watched(self):
        return self.keeper.of("r1")

    def speak(self):
        self.watched.counters.frames += 1
        self.watched.trust.set(Trust.EXACT)

    def lose_link(self):
        self.watched.counters.link_losses += 1
        self.watched.trust.set(Trust.BLIND, "connection lost")

    def pass_time(self, seconds):
        for _ in range(round(seconds * 4)):
            self.clock.advance(0.25)
            self.silence.look()

    @property
    def doubted_after_s(self):
        return [at - self.began for at in self.doubts]


@pytest.fixture
def stage():
    clock = ManualClock()
    pool = Pool(clock)
    pool.reconcile([replica("r1")])
    pool.mark_up("r1", model_rows("m"))
    index = MemoryIndex(clock=clock, max_bytes=2**20)
    stage = Stage(clock, pool, Keeper(index, NoSources()))
    stage.speak()
    stage.silence.look()
    return stage


def test_an_engine_without_requests_may_be_silent_for_ever(stage):
    stage.pass_time(60)
    assert stage.doubts == []


def test_an_engine_that_has_requests_and_falls_silent_is_doubted(stage):
    stage.load = 1
    stage.pass_time(AFTER_S)
    assert stage.doubted_after_s == [AFTER_S]


def test_a_request_that_comes_after_a_long_silence_gets_its_time(stage):
    stage.pass_time(60)
    stage.load = 1
    stage.pass_time(AFTER_S - 0.25)
    assert stage.doubts == []


def test_an_engine_that_goes_on_speaking_is_not_doubted(stage):
    stage.load = 9
    for _ in range(20):
        stage.pass_time(AFTER_S - 0.25)
        stage.speak()
    assert stage.doubts == []


def test_a_silence_that_goes_on_is_doubted_more_and_more_rarely(stage):
    stage.load = 1
    stage.pass_time(18)
    assert stage.doubted_after_s == [1.0, 3.0, 7.0, 12.0, 17.0]
    stage.speak()
    stage.pass_time(1.25)
    assert len(stage.doubts) == 6


def test_a_stream_that_has_never_said_anything_means_nothing(stage):
    stage.watched.counters.frames = 0
    stage.load = 1
    stage.pass_time(60)
    assert stage.doubts == []


def test_a_lost_connection_is_a_doubt_at_once_and_once(stage):
    stage.lose_link()
    stage.pass_time(0.25)
    assert stage.doubted_after_s == [0.25]
    stage.load = 1
    stage.pass_time(60)
    assert len(stage.doubts) == 1


def test_a_replica_that_is_down_is_probed_often_enough(stage):
    stage.load = 1
    stage.pool.mark_down("r1", "killed")
    stage.lose_link()
    stage.pass_time(60)
    assert stage.doubts == []
