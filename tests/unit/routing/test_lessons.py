"""Speed is learnt from prompts that nobody was in the way of."""

import pytest

from router.routing.lessons import MOST_DROPPED, Lesson, Lessons
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
