"""What a full cache evicts for a prompt, and what that makes of a copy's cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.routing import RouteQuery
from router.routing.cost import Surroundings, social_cost_ms
from router.routing.policies import POLICIES
from router.routing.room import Room
from tests.support.builders import candidate

QUERY = RouteQuery(prompt_tokens=1000, ring_key="k")


def test_nothing_is_evicted_before_a_cache_is_full():
    room = Room()
    room.ask(1000, 400)
    room.take("r1", 5999)
    assert room.evicted("r1", 6000) == 0.0
    room.take("r1", 1)
    assert room.evicted("r1", 6000) == pytest.approx(0.4)
    assert room.evicted("r1", None) == 0.0, "of unknown size"
    assert room.evicted("r2", 6000) == 0.0
    room.forget("r1")
    assert room.evicted("r1", 6000) == 0.0


def test_what_was_asked_of_late_counts():
    room = Room()
    for _ in range(500):
        room.ask(1000, 900)
    for _ in range(500):
        room.ask(1000, 100)
    assert room.reuse == pytest.approx(0.1, abs=0.01)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=50))
def test_the_share_is_one(prompts):
    room = Room()
    for prompt_tokens, held_tokens in prompts:
        room.ask(prompt_tokens, held_tokens)
    assert 0.0 <= room.reuse <= 1.0 + 1e-9


def test_a_copy_in_a_full_cache_costs_what_is_evicted_for_it():
    def first(evicted):
        idle = candidate("r1", evicted=evicted)
        return POLICIES["cache-aware"](None).rank(  # type: ignore[arg-type]
            QUERY, [idle, candidate("r2", hit_tokens=960, wait_ms=120.0)]
        )

    assert first(0.0).replicas[0] == "r1"
    assert first(0.5).replicas[0] == "r2"


def test_what_nobody_holds_costs_the_same_in_a_full_cache():
    free, full = candidate("r1"), candidate("r2", evicted=0.9)
    around = Surroundings.of([free, full])
    assert social_cost_ms(QUERY, free, around) == social_cost_ms(QUERY, full, around)
