"""Speed is learnt from prompts that nobody was in the way of."""

import pytest

from router.index.siblings import NoSiblings
from router.routing.lessons import MOST_DROPPED, TOLD_EVERY_S, Lesson, Lessons
from router.routing.speeds import Speeds
from router.routing.ttft import Sample


def lesson(ended, service_ms):
    sample = Sample(uncached_tokens=1000, hit_tokens=0, running=0, service_ms=service_ms)
    return Lesson("r1", "fleet", ended - 0.1, ended, sample)


def taught(lessons):
    return lessons.speeds.of("r1", "fleet").predict_ms(1000, 0.0, 0)


PRIOR_MS = Speeds().of("r1", "fleet").predict_ms(1000, 0.0, 0)


def test_a_lesson_waits_until_others_have_said_what_they_did():
    lessons = Lessons(Speeds())
    lessons.learn(lesson(1.0, 60.0), lambda *when: None)
    assert taught(lessons) == PRIOR_MS
    lessons.learn(lesson(2.0, 60.0), lambda *when: True)
    assert taught(lessons) < 0.7 * PRIOR_MS


def test_what_waited_behind_others_prompts_teaches_nothing():
    lessons = Lessons(Speeds())
    for number in range(20):
        lessons.learn(lesson(float(number), 60.0), lambda *when: True)
    before = taught(lessons)
    for number in range(20, 20 + MOST_DROPPED - 1):
        lessons.learn(lesson(float(number), 900.0), lambda *when: False)
    assert taught(lessons) == before


def test_in_a_fleet_that_is_never_quiet_the_quickest_teaches():
    lessons = Lessons(Speeds())
    for number in range(10 * MOST_DROPPED):
        service_ms = 40.0 if number % MOST_DROPPED == 7 else 400.0
        lessons.learn(lesson(float(number), service_ms), lambda *when: False)
    assert taught(lessons) == pytest.approx(40.0, rel=0.2)


class Host(NoSiblings):
    """Two processes that hear each other."""

    is_nobody = False

    def __init__(self):
        self.words = []
        self.other = self

    def tell(self, word):
        self.other.words.append(word)

    def hear(self):
        words, self.words = self.words, []
        return words


@pytest.fixture
def pair():
    one, other = Host(), Host()
    one.other, other.other = other, one
    return Lessons(Speeds(), one), Lessons(Speeds(), other)


def test_processes_of_a_host_learn_the_same(pair):
    one, other = pair
    for number in range(40):
        teller = pair[number % 2]
        teller.learn(lesson(0.1 * number, 40.0 + number % 7), lambda *when: True)
        one.listen()
        other.listen()
    assert taught(one) == pytest.approx(taught(other), rel=0.01)
    assert taught(one) == pytest.approx(43.0, rel=0.1)


def test_of_prompts_of_one_size_that_come_at_once_one_is_learnt_by_all(pair):
    one, other = pair
    one.learn(lesson(1.0, 40.0), lambda *when: True)
    before = taught(one)
    for number in range(10):
        one.learn(lesson(1.0 + 0.001 * number, 900.0), lambda *when: True)
    other.listen()
    assert taught(one) == taught(other) == before
    one.learn(lesson(1.0 + TOLD_EVERY_S, 900.0), lambda *when: True)
    other.listen()
    assert taught(one) == taught(other) > before


def test_a_word_that_is_no_lesson_teaches_nothing(pair):
    one, _ = pair
    one.siblings.words.append(b"\x93nonsense")
    one.listen()
    assert taught(one) == PRIOR_MS
