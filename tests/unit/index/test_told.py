"""What others told of their load goes on while nobody hears of them."""

from router.index.load import Load
from router.index.reservations import Reservation, Reservations
from router.index.told import Told
from tests.support.builders import ManualClock


def test_between_two_words_a_queue_is_worked_off():
    clock = ManualClock()
    told = Told(clock)
    told.tell("two", "r1", Load(queued_tokens=900, wait_ms=90.0, running=1, waiting=2), clock())
    clock.advance(0.05)
    load = told.get("r1")
    assert load is not None
    assert (round(load.wait_ms), load.running, load.waiting) == (40, 1, 2)
    clock.advance(0.05)
    load = told.get("r1")
    assert load is not None
    assert (load.queued_tokens, load.wait_ms, load.running, load.waiting) == (0, 0.0, 3, 0)


def test_a_prompt_behind_another_routers_is_no_lesson():
    clock = ManualClock()
    told = Told(clock)
    books = Reservations(clock, others=told)
    told.tell("two", "r1", Load(queued_tokens=900, wait_ms=90.0, waiting=1), clock())
    behind, alone = (
        Reservation(name, 10, 1.0, (), clock(), is_lesson=True) for name in ("r1", "r2")
    )
    books.take(behind)
    books.take(alone)
    assert not behind.is_lesson
    assert alone.is_lesson
