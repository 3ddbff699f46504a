"""What users are told about how far a replica's index entries can be believed."""

from router.events import ReplicaTrust, Trust, TrustChange
from tests.support.builders import ManualClock


def test_nothing_is_known_before_the_first_event():
    trust = ReplicaTrust("a")
    assert (trust.trust, trust.reason, trust.epoch) == (Trust.BLIND, "no event yet", 0)


def test_each_change_is_told_once():
    told: list[TrustChange] = []
    trust = ReplicaTrust("a", on_change=told.append)
    trust.set(Trust.EXACT)
    trust.set(Trust.EXACT)
    trust.set(Trust.DEGRADED, "a gap")
    trust.set(Trust.DEGRADED, "another gap")
    assert [(change.trust, change.reason) for change in told] == [
        (Trust.EXACT, ""),
        (Trust.DEGRADED, "a gap"),
        (Trust.DEGRADED, "another gap"),
    ]


def test_hits_that_keep_missing_the_prediction_cost_exact_once():
    trust = ReplicaTrust("a")
    trust.set(Trust.EXACT)
    assert [trust.observe_hit(10, 0) for _ in range(5)] == [False, False, True, False, False]
    assert trust.trust is Trust.DEGRADED
    assert trust.reason == "real hits fall short of predictions"


def test_exact_is_earned_back_by_as_many_hits():
    trust = ReplicaTrust("a")
    trust.set(Trust.EXACT)
    for _ in range(9):
        trust.observe_hit(10, 0)
    trust.observe_hit(10, 10)
    trust.observe_hit(10, 9)
    still_doubted = trust.trust
    trust.observe_hit(10, 5)
    assert (still_doubted, trust.trust) == (Trust.DEGRADED, Trust.EXACT)


def test_a_single_short_hit_among_full_ones_costs_nothing():
    trust = ReplicaTrust("a")
    trust.set(Trust.EXACT)
    for _ in range(10):
        trust.observe_hit(10, 1)
        trust.observe_hit(10, 10)
    assert trust.trust is Trust.EXACT


def test_a_hit_missed_altogether_is_a_doubt_until_the_next_frame():
    trust = ReplicaTrust("a")
    trust.set(Trust.EXACT)
    assert not trust.observe_hit(10, 0)
    assert trust.trust is Trust.DEGRADED
    assert trust.reason == "a predicted hit was missed: the cache may have been reset"
    trust.set(Trust.EXACT)
    assert trust.reason == ""


def test_requests_without_a_prediction_say_nothing():
    trust = ReplicaTrust("a")
    trust.set(Trust.EXACT)
    for _ in range(10):
        assert not trust.observe_hit(0, 0)
    assert trust.trust is Trust.EXACT


def test_a_new_epoch_starts_with_a_clean_slate():
    trust = ReplicaTrust("a")
    trust.set(Trust.EXACT)
    for _ in range(3):
        trust.observe_hit(10, 0)
    trust.begin_epoch()
    assert (trust.trust, trust.epoch) == (Trust.EXACT, 1)


def test_contradictions_never_make_a_worse_state_look_better():
    trust = ReplicaTrust("a")
    trust.set(Trust.BLIND, "connection lost")
    for _ in range(3):
        trust.observe_hit(10, 0)
    assert (trust.trust, trust.reason) == (Trust.BLIND, "connection lost")


def test_what_was_predicted_before_the_index_forgot_is_no_contradiction():
    clock = ManualClock()
    trust = ReplicaTrust("a", clock=clock)
    trust.set(Trust.EXACT)
    clock.advance(1.0)
    trust.note_forgotten()
    clock.advance(0.5)
    for _ in range(4):
        assert not trust.observe_hit(10, 0, age_s=0.5)
    assert trust.trust is Trust.EXACT
    assert [trust.observe_hit(10, 0, age_s=0.4) for _ in range(3)] == [False, False, True]
