"""Every policy orders all candidates; cache-aware puts the cheapest first and says why."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import (
    POLICIES,
    Ask,
    Candidate,
    Chooser,
    Contender,
    Reason,
    RouteQuery,
    Speeds,
    Ttft,
)
from router.routing.cost import Surroundings, predicted_ttft_ms, social_cost_ms
from tests.support.builders import ManualClock, candidate

QUERY = RouteQuery(prompt_tokens=1000, ring_key="a conversation")


def policy(name):
    return POLICIES[name](Random(7))


MOST = 8
candidates_lists = st.lists(
    st.builds(
        Candidate,
        replica_id=st.sampled_from([f"r{i}" for i in range(MOST)]),
        ttft=st.builds(Ttft, st.floats(0, 100), st.floats(0.001, 2), st.floats(0, 5)),
        hit_tokens=st.integers(0, 999),
        wait_ms=st.floats(0, 5000),
        queued_tokens=st.integers(0, 10_000),
        running=st.integers(0, 200),
        in_flight=st.integers(0, 300),
    ),
    min_size=1,
    max_size=MOST,
    unique_by=lambda c: c.replica_id,
)


@pytest.mark.parametrize("name", POLICIES)
@given(candidates=candidates_lists)
def test_every_candidate_is_ranked_exactly_once(name, candidates):
    decision = policy(name).rank(QUERY, candidates)
    assert sorted(decision.replicas) == sorted(c.replica_id for c in candidates)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"random", "power-of-two"}))
@given(candidates=candidates_lists, order=st.permutations(range(MOST)))
def test_the_order_in_which_candidates_come_changes_nothing(name, candidates, order):
    shuffled = [candidates[i] for i in order if i < len(candidates)]
    assert policy(name).rank(QUERY, candidates) == policy(name).rank(QUERY, shuffled)


@given(candidates=candidates_lists, more=st.integers(0, 999))
def test_more_match_never_costs_more(candidates, more):
    one = candidates[0]
    better = candidate(
        one.replica_id,
        ttft=one.ttft,
        hit_tokens=max(one.hit_tokens, more),
        wait_ms=one.wait_ms,
        running=one.running,
    )
    around = Surroundings.of(candidates)
    assert social_cost_ms(QUERY, better, around) <= social_cost_ms(QUERY, one, around)


def test_the_holder_of_the_prompt_is_chosen():
    decision = policy("cache-aware").rank(
        QUERY, [candidate("r1"), candidate("r2", hit_tokens=960), candidate("r3")]
    )
    assert decision.replicas[0] == "r2"
    assert decision.reason is Reason.MATCH


@given(candidates=candidates_lists)
def test_costs_are_finite_and_never_negative(candidates):
    around = Surroundings.of(candidates)
    for one in candidates:
        assert 0 <= social_cost_ms(QUERY, one, around) < math.inf


def test_a_holder_that_is_busy_for_longer_than_a_prefill_loses_the_prompt():
    idle, busy = candidate("r1"), candidate("r2", hit_tokens=960, wait_ms=300.0)
    decision = policy("cache-aware").rank(QUERY, [idle, busy])
    assert decision.replicas == ("r1", "r2")
    assert decision.reason is Reason.LOAD


def test_a_holder_that_is_busy_for_less_keeps_it():
    idle, busy = candidate("r1"), candidate("r2", hit_tokens=960, wait_ms=80.0)
    assert policy("cache-aware").rank(QUERY, [idle, busy]).replicas[0] == "r2"


def test_in_a_busy_fleet_a_second_prefill_counts_for_those_behind_too():
    idle = candidate("r1", busy=0.8)
    busy = candidate("r2", hit_tokens=960, wait_ms=130.0, busy=0.8)
    assert policy("cache-aware").rank(QUERY, [idle, busy]).replicas[0] == "r2"


def test_a_new_prompt_goes_where_memory_is_free():
    full = candidate("r1", full=0.85, memory_ms=300.0)
    free = candidate("r2", full=0.2, memory_ms=300.0, wait_ms=50.0)
    assert policy("cache-aware").rank(QUERY, [full, free]).replicas[0] == "r2"


def test_prefix_follows_the_longest_match_up_to_its_bound():
    holder, other = candidate("r1", hit_tokens=960, in_flight=1), candidate("r2", in_flight=1)
    assert policy("prefix").rank(QUERY, [holder, other]).replicas[0] == "r1"
    loaded = candidate("r1", hit_tokens=960, in_flight=9)
    assert policy("prefix").rank(QUERY, [loaded, other]).replicas[0] == "r2"


def test_lmetric_weighs_tokens_by_batch():
    one = candidate("r1", hit_tokens=500, in_flight=3)
    other = candidate("r2", hit_tokens=0, in_flight=0)
    assert policy("lmetric").rank(QUERY, [one, other]).replicas[0] == "r2"


def test_power_of_two_never_takes_the_most_loaded_of_two():
    pair = [candidate("r1", in_flight=5), candidate("r2", in_flight=4)]
    assert policy("power-of-two").rank(QUERY, pair).replicas[0] == "r2"


def test_blocks_that_are_being_computed_draw_siblings():
    coming = candidate("r2", hit_tokens=960, matched_tokens=0, wait_ms=80.0)
    decision = policy("cache-aware").rank(QUERY, [candidate("r1"), coming])
    assert decision.replicas[0] == "r2"
    assert decision.reason is Reason.EXPECTED


def computing(replica_id, queued_tokens):
    """It computes the prompt's beginning, by prediction until long after an idle one could."""
    return candidate(
        replica_id, hit_tokens=960, matched_tokens=0, wait_ms=130.0, queued_tokens=queued_tokens
    )


def test_what_two_compute_is_computed_a_third_time_only_for_work_that_is_counted():
    rank, idle = policy("cache-aware").rank, candidate("r1")
    one, other = computing("r2", 1000), computing("r3", 1000)
    assert rank(QUERY, [idle, one]).replicas[0] == "r1"
    assert rank(QUERY, [idle, one, other]).replicas[0] != "r1"
    assert rank(QUERY, [idle, computing("r2", 1100), other]).replicas[0] != "r1"
    assert rank(QUERY, [idle, computing("r2", 1100), computing("r3", 1100)]).replicas[0] == "r1"


def test_a_cold_prompt_goes_to_the_same_home_from_every_router():
    replicas = [candidate(f"r{i}") for i in range(4)]
    first = policy("cache-aware").rank(QUERY, replicas)
    again = policy("cache-aware").rank(QUERY, replicas[::-1])
    assert first.replicas == again.replicas
    assert first.reason is Reason.COLD


def test_cold_prompts_spread_over_all_replicas():
    chosen = {
        policy("cache-aware")
        .rank(RouteQuery(1000, f"conversation {i}"), [candidate(f"r{j}") for j in range(4)])
        .replicas[0]
        for i in range(100)
    }
    assert len(chosen) == 4


def test_a_cold_prompt_leaves_a_home_that_is_busier_than_the_others():
    home = policy("cache-aware").rank(QUERY, [candidate(f"r{i}") for i in range(4)]).replicas[0]
    loaded = [candidate(f"r{i}", wait_ms=500.0 * (f"r{i}" == home)) for i in range(4)]
    assert policy("cache-aware").rank(QUERY, loaded).replicas[0] != home


def test_a_prompt_that_could_not_be_tokenized_goes_by_load():
    query = RouteQuery(0, "unknown")
    loaded = [candidate("r1", wait_ms=900.0), candidate("r2")]
    assert policy("cache-aware").rank(query, loaded).replicas[0] == "r2"


def test_predicted_ttft_is_wait_plus_prefill_plus_decode_interference():
    one = candidate("r1", hit_tokens=400, wait_ms=50.0, running=4)
    assert predicted_ttft_ms(QUERY, one) == pytest.approx(
        20 + 50 + 600 * 0.1 + 400 * 0.002 + 4 * 0.5
    )


def test_the_last_prompt_token_is_always_computed():
    one = candidate("r1", hit_tokens=1000)
    assert predicted_ttft_ms(QUERY, one) > one.ttft.base_ms


def test_a_session_stays_when_other_replicas_leave():
    replicas = [candidate(f"r{i}") for i in range(4)]
    order = policy("session").rank(QUERY, replicas).replicas
    without_last = [c for c in replicas if c.replica_id != order[-1]]
    assert policy("session").rank(QUERY, without_last).replicas == order[:-1]


def test_round_robin_takes_turns():
    robin = policy("round-robin")
    replicas = [candidate("r1"), candidate("r2"), candidate("r3")]
    assert [robin.rank(QUERY, replicas).replicas[0] for _ in range(4)] == ["r1", "r2", "r3", "r1"]


def test_least_loaded_takes_the_fewest_in_flight():
    replicas = [candidate("r1", in_flight=2), candidate("r2", in_flight=1)]
    assert policy("least-loaded").rank(QUERY, replicas).replicas[0] == "r2"


def test_a_burst_of_equal_prompts_waits_for_the_first_to_be_computed():
    query = RouteQuery(8192, "k")
    holder = candidate(
        "r2", hit_tokens=8176, matched_tokens=0, wait_ms=819.0, running=0, in_flight=60
    )
    decision = policy("cache-aware").rank(query, [candidate("r1"), holder])
    assert decision.replicas[0] == "r2"


@pytest.mark.parametrize("session", [True, False])
def test_what_overflows_a_home_on_the_ring_returns_when_its_load_falls(session):
    clock = ManualClock()
    chooser = Chooser(
        MemoryIndex(clock=clock), Reservations(clock), Speeds(), policy("cache-aware"), clock
    )
    contenders = [Contender(f"r{i}", "m") for i in range(4)]

    def home() -> str:
        ask = Ask(1000, "a session") if session else Ask(1000, None, "a beginning")
        return chooser.consider(ask, contenders).decision.replicas[0]

    first = home()
    crowd = [chooser.consider(Ask(3000, "other"), contenders) for _ in range(4)]
    claims = [chooser.claim(choice, first) for choice in crowd]
    away = home()
    assert away != first
    clock.advance(1.2)
    for claim in claims:
        claim.first_token()
        claim.release()
    clock.advance(120.0)  # what it computed of late counts until then
    assert home() == first


def test_what_other_routers_send_unseen_makes_replicas_equal_that_differ_by_less():
    def first(key, unseen_s):
        candidates = [
            candidate("r1", wait_ms=0.0, busy=0.4),
            candidate("r2", wait_ms=9.0, busy=0.4),
        ]
        query = RouteQuery(1000, key, None, unseen_s)
        return policy("cache-aware").rank(query, candidates).replicas[0]

    keys = [f"prompt {number}" for number in range(20)]
    assert {first(key, 0.0) for key in keys} == {"r1"}
    assert {first(key, 0.02) for key in keys} == {"r1", "r2"}
