"""Whatever the policy and however requests end, each choice is sane and no load is left."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import POLICIES, Ask, Chooser, Contender, Prefix, Speeds
from router.routing.cost import Surroundings, predicted_ttft_ms, social_cost_ms
from tests.support.builders import ManualClock

BLOCK = 16
REPLICAS = ("r1", "r2", "r3")

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"), st.integers(0, 3), st.integers(0, 60), st.booleans(), st.booleans()
        ),
        st.tuples(st.just("token"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9), st.none() | st.integers(0, 500)),
        st.tuples(st.just("wait"), st.floats(0, 30)),
    ),
    max_size=40,
)


def make(name):
    clock = ManualClock()
    chooser = Chooser(
        index=MemoryIndex(clock=clock),
        reservations=Reservations(clock),
        speeds=Speeds(),
        policy=POLICIES[name](Random(7)),
        clock=clock,
        cache_tokens={"r1": 600, "r2": 5000},
    )
    return chooser, clock


def contenders_of(family, blocks):
    """Prompts of one family share their beginning. r3 is further away than the others."""
    prefix = Prefix(tuple(1000 * (family + 1) + i for i in range(blocks)), BLOCK if blocks else 0)
    return [Contender(name, "m", prefix, 40.0 * (name == "r3")) for name in REPLICAS]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=30)
@given(steps=steps)
def test_every_choice_is_sane_and_loads_return_to_zero(name, steps):
    chooser, clock = make(name)
    claims = []
    for kind, *details in steps:
        if kind == "wait":
            clock.advance(details[0])
        elif kind == "ask":
            claims.append(claim_one(chooser, *details))
        elif claims and kind == "token":
            claims[details[0] % len(claims)].first_token()
        elif claims:
            claims.pop(details[0] % len(claims)).release(details[1])
    for claim in claims:
        claim.release()
        claim.release()
    for replica_id in REPLICAS:
        load = chooser.reservations.load(replica_id)
        assert (load.in_flight, load.queued_tokens, load.wait_ms) == (0, 0, 0.0)
        assert load.resident_tokens == 0
    assert chooser.reservations.expected(contenders_of(0, 60)[0].prefix.hashes) == {}


def claim_one(chooser, family, blocks, has_session, is_silent):
    ask = Ask(BLOCK * blocks + 5 * bool(blocks), f"s{family}" if has_session else None, "start")
    choice = chooser.consider(ask, contenders_of(family, blocks))
    assert sorted(choice.decision.replicas) == list(REPLICAS)
    around = Surroundings.of(list(choice.candidates.values()))
    for candidate in choice.candidates.values():
        ttft_ms = predicted_ttft_ms(choice.query, candidate)
        assert candidate.distance_ms <= ttft_ms < math.inf
        assert 0 <= social_cost_ms(choice.query, candidate, around) < math.inf
    return chooser.claim(choice, choice.decision.replicas[0], silent=is_silent)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"random", "power-of-two"}))
@settings(max_examples=30)
@given(steps=steps, order=st.permutations(range(len(REPLICAS))))
def test_the_order_of_contenders_changes_no_choice(name, steps, order):
    (one, clock), (other, other_clock) = make(name), make(name)
    for kind, *details in steps:
        if kind == "wait":
            clock.advance(details[0])
            other_clock.advance(details[0])
        elif kind == "ask":
            family, blocks, has_session, is_silent = details
            session = f"s{family}" if has_session else None
            ask, contenders = Ask(BLOCK * blocks, session, "start"), contenders_of(family, blocks)
            first = one.consider(ask, contenders)
            second = other.consider(ask, [contenders[i] for i in order])
            assert first.decision.replicas == second.decision.replicas
            for chooser, choice in ((one, first), (other, second)):
                chooser.claim(choice, first.decision.replicas[0], silent=is_silent)
