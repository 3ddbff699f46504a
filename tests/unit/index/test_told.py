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


def test_when_others_kept_quiet_is_known_once_their_words_must_be_in():
    clock = ManualClock()
    told, start = Told(clock, late_s=0.1), clock()
    told.tell("two", "r1", Load(), clock())
    clock.advance(0.05)
    told.tell("two", "r1", Load(waiting=1, wait_ms=9.0), clock())
    clock.advance(0.05)
    told.tell("two", "r1", Load(running=1), clock())
    clock.advance(0.04)
    assert told.quiet("r1", start, start + 0.05) is None
    clock.advance(0.2)
    assert told.quiet("r1", start - 1.0, start) is True
    assert told.quiet("r1", start, start + 0.07) is False
    assert told.quiet("r1", start + 0.08, start + 0.2) is False
    assert told.quiet("r1", start + 0.1, start + 0.2) is True
    assert told.quiet("r2", start, start + 0.2) is True


def test_a_report_tells_of_quiet_up_to_an_interval_before_it_was_heard():
    clock = ManualClock()
    told, start = Told(clock, late_s=0.3, vague_s=0.1), clock()
    clock.advance(1.0)
    told.tell_all("two", {"r1": Load(running=1, quiet_ms=400.0)}, clock())
    clock.advance(0.1)
    told.tell_all("two", {"r1": Load(waiting=1, wait_ms=5.0)}, clock())
    clock.advance(1.0)
    assert told.quiet("r1", start + 0.6, start + 0.9) is True
    assert (
        told.quiet("r1", start + 0.55, start + 0.8) is True
    )  # before its first word it had none there
    assert told.quiet("r1", start + 0.8, start + 0.95) is False


def test_a_router_that_is_gone_or_has_nothing_there_any_more_is_not_counted():
    clock = ManualClock()
    told = Told(clock)
    told.tell_all("two", {"r1": Load(waiting=1, wait_ms=5.0), "r2": Load(running=1)}, clock())
    told.tell_all("two", {"r2": Load(running=1)}, clock())
    assert told.get("r1") is None
    told.keep([])
    assert told.get("r2") is None
    assert told.quiet("r1", clock(), clock()) is True


def test_who_tells_of_each_change_was_quiet_until_the_next_one():
    clock = ManualClock()
    told, start = Told(clock, late_s=0.01), clock()
    told.tell("two", "r1", Load(quiet_ms=0.0), clock(), 1, news_s=0.02)
    clock.advance(5.0)
    told.tell("two", "r1", Load(waiting=1, wait_ms=9.0), clock(), 2, news_s=0.02)
    clock.advance(1.0)
    assert told.quiet("r1", start + 1.0, start + 4.9) is True
    assert told.quiet("r1", start + 1.0, start + 5.1) is False


def test_a_word_that_was_overtaken_says_nothing():
    clock = ManualClock()
    told = Told(clock)
    told.tell("two", "r1", Load(queued_tokens=9, wait_ms=90.0), clock(), 2)
    told.tell("two", "r1", Load(), clock(), 1)
    told.tell_all("two", {}, clock(), 1)
    assert (load := told.get("r1")) is not None
    assert load.queued_tokens == 9
    told.tell_all("two", {}, clock(), 3)
    assert told.get("r1") is None
