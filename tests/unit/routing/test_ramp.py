"""A new replica's share grows, always by the same prompts; a fleet that drowns does not wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import POLICIES, Ask, Chooser, Contender, RouteQuery, Speeds
from router.routing.ramp import Ramp
from tests.support.builders import ManualClock, candidate

OLD = [candidate("r1"), candidate("r2")]
NEW = candidate("r3")


def query(key):
    return RouteQuery(prompt_tokens=1000, ring_key=f"conversation {key}")


def taken(ramp, now, candidates=(*OLD, NEW)):
    """Keys of a thousand that the new one may get."""
    return {k for k in range(1000) if NEW in ramp.admitted(query(k), list(candidates), now)}


def test_the_share_grows_from_none_to_all():
    ramp = Ramp(ramp_s=10.0)
    ramp.begin("r3", 100.0)
    assert [ramp.share("r3", 100.0 + t) for t in (0.0, 1.0, 5.0)] == [0.0, 0.1, 0.5]
    assert taken(ramp, 100.0) == set()
    assert len(taken(ramp, 105.0)) == pytest.approx(500, abs=60)
    assert len(taken(ramp, 110.0)) == 1000
    assert ramp.is_idle


def test_what_it_may_get_once_it_may_get_later():
    ramp = Ramp(ramp_s=10.0)
    ramp.begin("r3", 0.0)
    before: set[int] = set()
    for now in (1.0, 3.0, 6.0, 9.0):
        after = taken(ramp, now)
        assert before <= after
        before = after


def test_two_routers_give_it_the_same():
    one, other = Ramp(10.0), Ramp(10.0)
    for ramp in (one, other):
        ramp.begin("r3", 0.0)
    assert taken(one, 4.0) == taken(other, 4.0)


def test_a_fleet_that_drowns_gives_it_more():
    ramp = Ramp(ramp_s=10.0)
    ramp.begin("r3", 0.0)
    drowning = [candidate("r1", wait_ms=9000.0), candidate("r2", wait_ms=8000.0), NEW]
    assert len(taken(ramp, 1.0, drowning)) == 1000
    assert taken(ramp, 0.0, drowning) == set()


def test_while_it_is_held_it_gets_nothing_unless_nobody_else_is_there():
    ramp = Ramp(ramp_s=10.0)
    ramp.hold("r3")
    drowning = [candidate("r1", wait_ms=1e6), NEW]
    assert taken(ramp, 1e9, drowning) == set()
    assert list(ramp.admitted(query(1), [NEW], 0.0)) == [NEW]
    ramp.begin("r3", 0.0)
    assert ramp.share("r3", 10.0) == 1.0


def test_a_share_that_was_reached_while_it_was_held_is_kept():
    settled: list[str] = []
    ramp = Ramp(10.0, settled.append)
    ramp.hold("r3", 0.5)
    assert ramp.share("r3", 1e9) == 0.5
    ramp.begin("r3", 100.0)
    assert ramp.share("r3", 102.0) == pytest.approx(0.7)
    ramp.hold("r3", 1.0)
    assert ramp.share("r3", 102.0) < 1.0
    ramp.begin("r3", 103.0)
    assert (ramp.share("r3", 103.0), settled) == (1.0, ["r3"])
    assert ramp.share("r3", 104.0) == 1.0
    assert settled == ["r3"]
    assert ramp.is_idle


def test_without_a_ramp_nobody_is_new():
    ramp = Ramp()
    ramp.begin("r3", 5.0)
    assert len(taken(ramp, 5.0)) == 1000


@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    waits=st.lists(st.floats(0, 1e5), min_size=6, max_size=6),
    key=st.text(max_size=8),
)
def test_somebody_may_always_take_it_and_settled_ones_always_may(shares, waits, key):
    ramp = Ramp(ramp_s=10.0)
    candidates = [candidate(f"r{i}", wait_ms=waits[i]) for i in range(len(shares))]
    for one, share in zip(candidates, shares, strict=True):
        ramp.begin(one.replica_id, 100.0 - 10.0 * share)
    admitted = ramp.admitted(RouteQuery(100, key), candidates, 100.0)
    assert admitted
    for one in candidates:
        assert one in admitted or ramp.share(one.replica_id, 100.0) < 1.0


@pytest.mark.parametrize("name", POLICIES)
def test_whatever_the_policy_a_held_replica_comes_last(name):
    from random import Random

    clock = ManualClock()
    policy = POLICIES[name](Random(3))
    chooser = Chooser(MemoryIndex(clock=clock), Reservations(clock), Speeds(), policy, clock)
    chooser.ramp.hold("r2")
    contenders = [Contender(f"r{i}", "m") for i in range(4)]
    for number in range(8):
        order = chooser.consider(Ask(100, f"s{number}"), contenders).decision.replicas
        assert sorted(order) == ["r0", "r1", "r2", "r3"]
        assert order[-1] == "r2"
    chooser.forget("r2")
    firsts = {
        chooser.consider(Ask(100, f"s{n}"), contenders).decision.replicas[0] for n in range(60)
    }
    assert "r2" in firsts
