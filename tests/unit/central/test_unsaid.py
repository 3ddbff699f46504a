"""Hits that came out as predicted are told in few words, in order with those that did not."""

from router.central import wire
from router.central.unsaid import Unsaid
from router.central.wire import MOST_HITS, Hit, Splitter


def told(unsaid):
    frames = list(Splitter(wire.MAX_BYTES).feed(unsaid.take()))
    return [wire.read_hit(body) if kind == wire.Kind.HIT else kind for kind, body in frames]


def test_of_hits_as_predicted_only_their_number_is_told():
    unsaid = Unsaid()
    for age_s in (0.0, 0.25, 0.5, 0.125):
        unsaid.add_hit(Hit("a", 32, 32, age_s))
    unsaid.add_hit(Hit("b", 16, 48, 0.2))
    assert told(unsaid) == [Hit("a", 32, 32, 0.5, 3), Hit("b", 16, 48, 0.2)]
    assert not unsaid
    assert unsaid.take() == b""


def test_one_that_fell_short_keeps_its_place():
    unsaid = Unsaid()
    unsaid.add_hit(Hit("a", 32, 32))
    unsaid.add_hit(Hit("a", 32, 32))
    unsaid.add_hit(Hit("a", 32, 0))
    unsaid.add(wire.frame(wire.Kind.SUSPECT, b"a"))
    unsaid.add_hit(Hit("a", 32, 32))
    found = told(unsaid)
    assert found == [Hit("a", 32, 32, 0.0, 1), Hit("a", 32, 0), wire.Kind.SUSPECT, Hit("a", 32, 32)]


def test_one_word_is_of_no_more_hits_than_the_index_takes():
    unsaid = Unsaid()
    for _ in range(MOST_HITS + 2):
        unsaid.add_hit(Hit("a", 32, 32))
    assert [hit.more for hit in told(unsaid)] == [MOST_HITS, 0]


def test_a_hit_of_a_version_that_tells_each_by_itself_is_one():
    unsaid = Unsaid()
    unsaid.add_hit(Hit("a", 32, 32, 0.5))
    ((kind, body),) = Splitter(wire.MAX_BYTES).feed(unsaid.take())
    shorter = bytes([body[0] - 1]) + body[1:-1]
    assert kind == wire.Kind.HIT
    assert wire.read_hit(shorter) == Hit("a", 32, 32, 0.5)
