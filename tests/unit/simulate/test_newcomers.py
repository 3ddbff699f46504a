"""Replicas that join a simulated fleet: what a ramp and a warm-up change; what needs neither."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from loadgen.quantiles import percentile
from loadgen.simulate.fleet import Change, Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.outcome import Served
from loadgen.simulate.patterns import Groups, groups
from loadgen.simulate.simulation import Simulation
from loadgen.simulate.traffic import Traffic
from workers.engine.profile import load_profile

JOINS_S, SETTLED_S = 4.0, 9.0
FLEET = Fleet(
    profile=load_profile("h100-8b-bf16"),
    replicas=4,
    block_size=64,
    changes=(Change(JOINS_S, add=1),),
)


def run(traffic: Traffic, **fleet: object) -> Sequence[Served]:
    made = replace(FLEET, **fleet)  # type: ignore[arg-type]
    return Simulation(made, traffic, policy_maker("cache-aware"), 1).run().served


@cache
def unique(slow: float = 1.0, ramp_s: float = 0.0) -> Sequence[Served]:
    """Prompts that share nothing; `slow`: so many times slower is the new one for 3 s."""
    traffic = groups(1, Groups(380, 1, 0, 3000, 32, 28.0))
    return run(traffic, starting=(slow, 3.0), ramp_s=ramp_s)


def share_of_new(served: Sequence[Served], since_s: float) -> float:
    late = [one for one in served if one.asked >= since_s]
    return sum(one.replica == "r04" for one in late) / len(late)


def p95_ms(served: Sequence[Served], since_s: float = 0.0) -> float:
    return percentile(sorted(one.ttft_ms for one in served if one.asked >= since_s), 0.95)


def test_a_cold_replica_that_joins_takes_its_share_and_makes_no_spike():
    served = unique()
    before = p95_ms([one for one in served if one.asked < JOINS_S])
    joining = [one for one in served if JOINS_S <= one.asked < SETTLED_S]
    assert 0.1 < share_of_new(served, JOINS_S) < 0.3
    assert p95_ms(joining) < 1.5 * before


def test_after_a_ramp_a_replica_that_was_slow_while_it_started_is_not_avoided():
    avoided, ramped = unique(slow=5.0), unique(slow=5.0, ramp_s=4.0)
    assert share_of_new(ramped, SETTLED_S) > 0.1
    assert share_of_new(ramped, SETTLED_S) > 2 * share_of_new(avoided, SETTLED_S)
    assert p95_ms(ramped) < 1.05 * p95_ms(avoided)


def test_a_ramp_hardly_delays_a_replica_that_is_not_slow():
    at_once, ramped = unique(), unique(ramp_s=4.0)
    assert p95_ms(ramped) < 1.1 * p95_ms(at_once)
    assert share_of_new(ramped, SETTLED_S) > 0.1


def test_a_warmed_up_replica_shares_hot_prefixes_at_once():
    def shared() -> Traffic:
        return groups(1, Groups(8, 50, 3000, 300, 64, 75.0))

    changes = (Change(2.0, add=1),)
    cold = run(shared(), changes=changes)
    warm = run(shared(), changes=changes, warm_tokens=30_000)
    served_by_new = [one for one in warm if one.replica == "r04"]
    assert len(served_by_new) > 10
    assert all(one.hit_tokens > 2500 for one in served_by_new)
    assert p95_ms(warm) <= 1.02 * p95_ms(cold)


def test_a_hot_prefix_is_copied_before_its_holder_drowns():
    # one replica computes some 30 of these a second
    served = run(groups(1, Groups(1, 350, 2048, 512, 32, 70.0)), changes=())
    late = [one for one in served if one.asked > served[-1].asked / 2]
    assert {one.replica for one in late} == {"r00", "r01", "r02", "r03"}
    assert p95_ms(late) < 300
