"""Whole simulated runs: repeatable, bounded by what is possible, and true to what is published."""

from dataclasses import replace

import msgspec
import pytest

from loadgen.quantiles import percentile
from loadgen.simulate.benchmark import DEFAULT, goals, run_case, verdicts
from loadgen.simulate.fleet import Change, Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.ladder import LADDER_73
from loadgen.simulate.patterns import Groups, flood, groups
from loadgen.simulate.published import ladders
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.suite import cases
from loadgen.simulate.trials import Catalogue, Here, Processes, Trial
from router.routing import POLICIES
from workers.engine.profile import load_profile

FLEET = Fleet(profile=load_profile("h100-8b-bf16"), replicas=4, kv_tokens=60_000)
SHAPE = Groups(12, 10, 2000, 200, 30, rate_per_s=20.0)


def simulate(policy, fleet=FLEET, seed=3, shape=SHAPE):
    simulation = Simulation(fleet, groups(seed, shape), policy_maker(policy), seed)
    return simulation, simulation.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run(policy):
    _, one = simulate(policy)
    _, other = simulate(policy)
    assert one.served == other.served


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_and_nothing_stays_booked(policy):
    simulation, result = simulate(policy)
    assert all(one.ended is not None and one.ended >= one.first_token for one in result.served)
    reservations = simulation.world.routers[0].chooser.reservations
    for name in simulation.world.engines:
        load = reservations.load(name)
        assert (load.in_flight, load.queued_tokens, load.resident_tokens) == (0, 0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_hits_more_than_an_unlimited_cache(policy):
    _, result = simulate(policy)
    assert result.total.hit_rate <= result.total.bound + 1e-9


def test_the_index_knows_what_the_engines_hold():
    simulation, _ = simulate(DEFAULT)
    index = simulation.world.routers[0].index
    for name, engine in simulation.world.engines.items():
        assert index.blocks_of(name) == set(engine.pool.copies())


def test_a_router_knows_how_full_caches_are():
    shape = Groups(20, 12, 2000, 200, 500, rate_per_s=60.0)
    fleet = replace(FLEET, replicas=2)
    simulation = Simulation(fleet, groups(3, shape), policy_maker(DEFAULT), 3)
    found: list[tuple[int, int]] = []

    def look() -> None:
        reservations = simulation.world.routers[0].chooser.reservations
        for name, engine in simulation.world.engines.items():
            held = engine.pool.used_count * fleet.block_size
            found.append((reservations.load(name).resident_tokens, held))

    for tenth in range(10, 30):
        simulation.world.timeline.at(tenth / 10, look)
    simulation.run()
    believed, held = (sum(side) for side in zip(*found, strict=True))
    assert held > 0.5 * len(found) * 60_000
    assert believed == pytest.approx(held, rel=0.1)


def test_cache_aware_hits_nearly_what_one_pooled_cache_would():
    _, result = simulate(DEFAULT)
    assert result.total.hit_rate >= 0.97 * result.total.pooled_bound


def test_a_killed_replicas_requests_are_answered_by_others():
    fleet = replace(FLEET, changes=(Change(at_s=2.0, kill=1, add=1),))
    _, result = simulate(DEFAULT, fleet, shape=replace(SHAPE, output_tokens=400))
    assert all(one.ended is not None for one in result.served)
    assert any(one.tries > 1 for one in result.served)
    assert "r04" in {one.replica for one in result.served}


def test_routers_that_share_their_load_hit_like_one():
    _, one = simulate(DEFAULT)
    _, four = simulate(DEFAULT, replace(FLEET, routers=4, load_sharing_s=0.02))
    assert four.total.hit_rate == pytest.approx(one.total.hit_rate, abs=0.02)


def test_lost_events_cost_hits_and_nothing_else():
    _, result = simulate(DEFAULT, replace(FLEET, event_loss=0.2, event_jitter_s=0.05))
    assert all(one.ended is not None for one in result.served)


def ladder(policy, *stages):
    make = replace(LADDER_73, stages=((15, 50), *stages)).traffic
    fleet = Fleet(profile=load_profile("2xh100-32b-llmd"), replicas=8)
    return Simulation(fleet, make(1), policy_maker(policy), 1).run()


def test_round_robin_has_its_knee_between_15_and_20_requests_a_second():
    result = ladder("round-robin", (10, 20), (20, 38))
    assert result.stages["10/s"].ttft_p90_ms < 5_000
    assert result.stages["20/s"].ttft_p90_ms > 15_000


def test_cache_aware_answers_at_20_requests_a_second_as_if_idle():
    assert ladder(DEFAULT, (20, 38)).stages["20/s"].ttft_p90_ms < 400


def test_a_benchmark_says_how_the_default_compares():
    case = cases()["sibling-burst"]
    rows = run_case(case, [DEFAULT, "round-robin"], [0, 1], 10, lambda text: None)
    (verdict,) = verdicts(rows)
    assert verdict.over_control < 0.1


def test_processes_measure_what_one_process_does():
    trials = [Trial("sibling-burst", DEFAULT, 0), Trial("sibling-burst", "round-robin", 0)]
    catalogue = Catalogue(None, {"replicas": 3})
    here = list(Here(catalogue.cases()).measure(trials))
    assert list(Processes(catalogue, 2).measure(trials)) == here


def test_goals_are_met_by_who_is_best_and_missed_by_who_is_not():
    case = cases()["F"]
    rows = run_case(case, [DEFAULT, "round-robin"], [0], 0, lambda text: None)
    assert {goal.name: goal.is_met for goal in goals(rows)} == {
        "F: P95 TTFT best or within 3 %": True,
        "F: not worse than round robin beyond noise": True,
        "F: regret ≤ 5 %": True,
        "F: hits ≥ 97 % of one pooled cache": True,
        "F: P95 TTFT ≥ 3 x lower than round robin's at equal throughput": True,
    }
    swapped = {DEFAULT: "round-robin", "round-robin": DEFAULT}
    worse = [msgspec.structs.replace(row, policy=swapped[row.policy]) for row in rows]
    missed = [goal.name for goal in goals(worse) if not goal.is_met]
    assert "F: P95 TTFT best or within 3 %" in missed
    assert "F: hits ≥ 97 % of one pooled cache" in missed


def test_a_queue_in_the_router_spares_one_tenant_another_ones_flood():
    def run(slo_ttft_ms):
        fleet = replace(FLEET, kv_tokens=None, slo_ttft_ms=slo_ttft_ms, queue_wait_s=60.0)
        return Simulation(fleet, flood(1), policy_maker(DEFAULT), 1).run()

    def p95_ms(result, tenant):
        return percentile(sorted(o.ttft_ms for o in result.served if o.tenant == tenant), 0.95)

    without, queued = run(None), run(500.0)
    assert p95_ms(queued, "steady") < 0.1 * p95_ms(without, "steady")
    assert p95_ms(queued, "floods") < 1.05 * p95_ms(without, "floods")
    assert queued.total.output_tokens_per_s > 0.97 * without.total.output_tokens_per_s


def test_a_queue_that_nobody_needs_changes_nothing():
    _, without = simulate(DEFAULT)
    simulation, queued = simulate(DEFAULT, replace(FLEET, slo_ttft_ms=60_000.0))
    assert simulation.world.routers[0].queue.waited == 0
    assert queued.served == without.served


def test_only_published_schedulers_have_a_ladder():
    assert list(ladders([1], ["session", "lmetric"], lambda text: None)) == []
