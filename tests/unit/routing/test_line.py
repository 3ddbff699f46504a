"""Who waits for a replica is served in turn by tenant, in order within a tenant."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import Ask, Chooser, Contender, Speeds
from router.routing.line import Line, Place, may_start
from router.routing.policies.cache_aware import CacheAware
from tests.support.builders import ManualClock


def serve_all(line):
    order = []
    while (place := line.first) is not None:
        order.append(place)
        line.serve(place)
    return order


def test_tenants_take_turns_and_each_keeps_its_order():
    line = Line()
    places = [Place(tenant) for tenant in "aaaabbc"]
    for place in places:
        line.join(place)
    a1, a2, a3, a4, b1, b2, c1 = places
    assert serve_all(line) == [a1, b1, c1, a2, b2, a3, a4]


def test_one_who_leaves_costs_the_others_nothing():
    line = Line()
    first, second, other = Place("a"), Place("a"), Place("b")
    for place in (first, second, other):
        line.join(place)
    line.leave(first)
    line.leave(first)
    assert len(line) == 2
    assert serve_all(line) == [second, other]


@given(
    steps=st.lists(
        st.tuples(st.just("join"), st.sampled_from("abc"))
        | st.tuples(st.sampled_from(["leave", "serve"]), st.integers(0, 30)),
        max_size=60,
    )
)
def test_nobody_is_lost_passed_by_or_served_twice(steps):
    line, waiting, served = Line(), [], []
    for kind, detail in steps:
        if kind == "join":
            waiting.append(Place(detail))
            line.join(waiting[-1])
        elif kind == "leave" and waiting:
            line.leave(waiting.pop(detail % len(waiting)))
        elif kind == "serve" and (first := line.first) is not None:
            earlier = [p for p in waiting if p.tenant == first.tenant]
            assert earlier[0] is first
            line.serve(first)
            waiting.remove(first)
            served.append(first)
        assert len(line) == len(waiting)
        assert (line.first is None) == (not waiting)
    assert sorted(map(id, serve_all(line))) == sorted(map(id, waiting))


@given(tenants=st.lists(st.sampled_from("abcd"), min_size=1, max_size=40))
def test_a_tenant_waits_for_no_more_than_one_of_each_other_between_two_of_its_own(tenants):
    line = Line()
    for tenant in tenants:
        line.join(Place(tenant))
    order = [place.tenant for place in serve_all(line)]
    for tenant in set(tenants):
        at = [number for number, one in enumerate(order) if one == tenant]
        for before, after in pairwise(at):
            between = order[before + 1 : after]
            assert len(between) == len(set(between))


def choice_of(slo_tokens, booked=()):
    clock = ManualClock()
    chooser = Chooser(MemoryIndex(clock=clock), Reservations(clock), Speeds(), CacheAware(), clock)
    contenders = [Contender(name, "m") for name in ("r1", "r2")]
    for replica_id, tokens in booked:
        choice = chooser.consider(Ask(tokens), contenders)
        chooser.claim(choice, replica_id)
    return chooser.consider(Ask(slo_tokens), contenders)


def test_a_prompt_may_start_while_one_replica_would_keep_the_slo():
    busy = [("r1", 5000), ("r2", 2000)]
    assert may_start(choice_of(100, busy), slo_ms=300.0)
    assert not may_start(choice_of(100, busy), slo_ms=150.0)


def test_a_prompt_that_breaks_the_slo_by_itself_starts_where_nothing_is_before_it():
    assert may_start(choice_of(50_000), slo_ms=100.0)
    assert may_start(choice_of(50_000, [("r1", 5000)]), slo_ms=100.0)
    assert not may_start(choice_of(50_000, [("r1", 5000), ("r2", 10)]), slo_ms=100.0)
