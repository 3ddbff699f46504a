"""Conversations while replicas join, leave and die."""

import pytest

from loadgen.simulate.outcome import Served
from loadgen.simulate.scaling import PHASES, _moved, _verdict


def turn(session, at, replica, ttft_s=0.05):
    return Served("all", at, 100, 10, session=session, replica=replica, first_token=at + ttft_s)


def test_who_has_another_replica_at_the_next_turn_has_moved():
    served = [
        turn("a", 1.0, "r0"), turn("a", 3.0, "r0"), turn("b", 1.5, "r1"), turn("b", 3.5, "r2"),
        turn("c", 1.7, "r1"),
    ]  # fmt: skip
    assert _moved(served, 2.0) == (0.5, 2)


@pytest.mark.parametrize(("slow_for_s", "is_met"), [(3, True), (20, False)])
def test_a_spike_counts_for_as_long_as_it_lasts(slow_for_s, is_met):
    phase = PHASES[0]
    served = [
        turn("a", at / 10, "r0", 0.3 if 0 <= at / 10 - phase.at_s < slow_for_s else 0.05)
        for at in range(10 * int(phase.at_s - 20), 10 * int(phase.until_s))
    ]
    verdict = _verdict(phase, served, served)
    assert verdict.is_met is is_met
    assert verdict.worst_ms == pytest.approx(300.0)
