"""The TTFT model learns a replica's speed, and stays near its prior without evidence."""

from random import Random

import pytest

from router.routing import POLICIES, RouteQuery, Speeds, Ttft, TtftModel
from router.routing.ttft import Sample
from tests.support.builders import candidate


def feed(model, truth, samples):
    for tokens, running in samples:
        model.observe(Sample(tokens, 0, running, truth.predict_ms(tokens, 0.0, running)))


MIXED = [(200, 0), (4000, 3), (900, 1), (50, 8), (2000, 0), (8000, 5)] * 5


@pytest.mark.parametrize(
    "truth", [Ttft(15.0, 0.02, 0.3), Ttft(90.0, 1.8, 30.0), Ttft(5.0, 0.1, 0.0)]
)
def test_it_learns_a_replica_from_thirty_mixed_requests(truth):
    model = TtftModel()
    feed(model, truth, MIXED)
    for tokens, running in [(100, 0), (1000, 2), (8000, 4)]:
        wanted = truth.predict_ms(tokens, 0.0, running)
        assert model.ttft.predict_ms(tokens, 0.0, running) == pytest.approx(wanted, rel=0.1)


def test_without_samples_it_is_its_prior():
    assert TtftModel(Ttft(1.0, 2.0, 3.0)).ttft == Ttft(1.0, 2.0, 3.0)


def test_samples_of_one_length_keep_the_estimate_finite_and_positive():
    model = TtftModel()
    for _ in range(500):
        model.observe(Sample(1000, 0, 0, 150.0))
    assert model.ttft.predict_ms(1000, 0.0, 0) == pytest.approx(150.0, rel=0.05)
    assert model.ttft.ms_per_token > 0


def test_it_follows_a_replica_that_slows_down():
    model = TtftModel()
    feed(model, Ttft(20.0, 0.05, 0.0), MIXED)
    feed(model, Ttft(20.0, 0.5, 0.0), MIXED * 6)
    assert model.ttft.ms_per_token == pytest.approx(0.5, rel=0.15)


def test_absurd_samples_never_make_a_cost_negative():
    model = TtftModel()
    for tokens, ms in [(10_000, 1.0), (1, 60_000.0)] * 50:
        model.observe(Sample(tokens, 0, 3, ms))
    assert model.ttft.base_ms >= 0
    assert model.ttft.ms_per_token > 0
    assert model.ttft.ms_per_running >= 0


def teach(speeds, replica_id, truth, samples=MIXED):
    for tokens, running in samples:
        sample = Sample(tokens, 0, running, truth.predict_ms(tokens, 0.0, running))
        speeds.observe(replica_id, "m", sample)


def test_a_new_replica_is_like_its_fleet():
    speeds = Speeds()
    teach(speeds, "r1", Ttft(30.0, 1.0, 0.0))
    assert speeds.of("r2", "m").ms_per_token == pytest.approx(1.0, rel=0.1)
    assert speeds.of("r3", "another model") == TtftModel().ttft


def test_a_slow_replica_is_told_apart_from_its_fleet():
    speeds, truth = Speeds(), Ttft(30.0, 0.2, 1.0)
    for sample in MIXED * 3:
        for name in ("r1", "r2", "r3"):
            teach(speeds, name, truth, [sample])
        teach(speeds, "slow", truth.scaled(3.0), [sample])
    fast, slow = speeds.of("r1", "m"), speeds.of("slow", "m")
    assert slow.predict_ms(2000, 0, 0) > 1.9 * fast.predict_ms(2000, 0, 0)


def test_noise_does_not_tell_equal_replicas_apart():
    speeds, truth, rng = Speeds(), Ttft(30.0, 0.2, 1.0), Random(3)
    for _ in range(40):
        for name in ("r1", "r2"):
            tokens = rng.randrange(50, 4000)
            noisy = truth.predict_ms(tokens, 0.0, 0) * rng.lognormvariate(0, 0.3)
            speeds.observe(name, "m", Sample(tokens, 0, 0, noisy))
    one, other = (speeds.of(name, "m").predict_ms(1000, 0, 0) for name in ("r1", "r2"))
    assert one == pytest.approx(other, rel=0.15)


def test_a_fleet_that_gets_faster_is_not_taken_for_replicas_that_are_all_fast():
    speeds, slow, fast = Speeds(), Ttft(200.0, 0.2, 0.0), Ttft(50.0, 0.2, 0.0)
    for truth, rounds in ((slow, 3), (fast, 10)):
        for sample in MIXED * rounds:
            for name in ("r1", "r2", "r3"):
                teach(speeds, name, truth, [sample])
    for name in ("r1", "new"):
        assert speeds.of(name, "m").base_ms == pytest.approx(50.0, rel=0.2)


def test_no_parameter_makes_up_for_one_that_would_be_below_zero():
    model, rng = TtftModel(), Random(1)
    for _ in range(200):  # the more decode, the sooner: by what else changed in the meantime
        running = rng.randrange(50)
        model.observe(Sample(40, 0, running, 200.0 - running))
    assert model.ttft.ms_per_running == 0.0
    assert model.ttft.predict_ms(40, 0.0, 25) == pytest.approx(175.0, rel=0.06)


def test_a_replica_that_left_is_like_its_fleet_again():
    speeds = Speeds()
    teach(speeds, "r1", Ttft(30.0, 0.2, 0.0))
    teach(speeds, "r2", Ttft(90.0, 0.6, 0.0))
    speeds.forget("r2")
    assert speeds.of("r2", "m") == speeds.of("new", "m")


def test_reused_tokens_are_learnt_to_cost_something():
    model = TtftModel()
    truth = Ttft(10.0, 0.1, 0.0, ms_per_hit_token=0.01)
    for uncached, hits in [(200, 0), (200, 8000), (1000, 2000), (50, 16_000)] * 20:
        model.observe(Sample(uncached, hits, 0, truth.predict_ms(uncached, 0.0, 0, hits)))
    assert model.ttft.ms_per_hit_token == pytest.approx(0.01, rel=0.2)


def test_what_passes_beside_steps_is_told_from_what_steps_take():
    model = TtftModel()
    truth = Ttft(90.0, 0.08, 0.5, host_ms=60.0)
    for tokens, running in MIXED * 3:
        alone_ms = truth.predict_ms(tokens, 0.0, running)
        model.observe(Sample(tokens, 0, running, alone_ms))
        model.observe(Sample(tokens, 0, running, alone_ms - 60.0, is_alone=False))
    assert model.ttft.host_ms == pytest.approx(60.0, rel=0.15)
    assert model.ttft.base_ms == pytest.approx(90.0, rel=0.15)
    assert model.ttft.step_ms(4) == pytest.approx(32.0, rel=0.3)


def test_attention_is_learnt_so_that_long_prompts_are_predicted_too():
    model, rng = TtftModel(), Random(5)
    truth = Ttft(25.0, 0.08, 0.0, 0.005, ms_per_mpair=1.8)
    for _ in range(80):
        tokens, hits = rng.choice([300, 2000, 8000, 16_000, 30_000]), rng.choice([0, 5000, 40_000])
        took = truth.predict_ms(tokens, 0.0, 0, hits) * rng.lognormvariate(0, 0.1)
        model.observe(Sample(tokens, hits, 0, took))
    for tokens, hits in [(60_000, 0), (1000, 60_000), (2000, 0)]:
        wanted = truth.predict_ms(tokens, 0.0, 0, hits)
        assert model.ttft.predict_ms(tokens, 0.0, 0, hits) == pytest.approx(wanted, rel=0.15)


def test_a_few_stalls_teach_nothing():
    model = TtftModel()
    feed(model, Ttft(20.0, 0.05, 0.0), MIXED)
    before = model.ttft.predict_ms(2000, 0.0, 0)
    for _ in range(3):
        model.observe(Sample(2000, 0, 0, 60_000.0))
    assert model.ttft.predict_ms(2000, 0.0, 0) < 1.5 * before


def next_turns(model, truth, rng, count):
    """Conversations: little is left to compute, and always about equally much. The predictions
    after each turn for a long prompt of which nothing is held, over the true one."""
    found = []
    for _ in range(count):
        tokens, hits, running = rng.randrange(120, 170), rng.randrange(1200, 4500), rng.randrange(5)
        took = truth.predict_ms(tokens, 0.0, running, hits) * rng.lognormvariate(0, 0.25)
        model.observe(Sample(tokens, hits, running, took))
        found.append(model.ttft.predict_ms(3400, 0.0, 0) / truth.predict_ms(3400, 0.0, 0))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_hours_of_next_turns_do_not_make_it_forget_what_a_long_prompt_takes(seed):
    model, rng, truth = TtftModel(), Random(seed), Ttft(25.0, 0.1, 1.0, 0.005)
    for _ in range(40):
        tokens = rng.randrange(200, 1500)
        took = truth.predict_ms(tokens, 0.0, 0) * rng.lognormvariate(0, 0.25)
        model.observe(Sample(tokens, 0, 0, took))
    found = next_turns(model, truth, rng, 1500)
    assert min(found) > 0.7
    assert max(found) < 1.4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "truth",
    [Ttft(25.0, 0.1, 1.0, 0.005), Ttft(15.0, 0.02, 0.3, 0.001), Ttft(90.0, 1.8, 30.0, 0.01)],
)
def test_a_router_that_has_seen_next_turns_only_keeps_to_the_prior_for_long_prompts(truth, seed):
    found = next_turns(TtftModel(), truth, Random(seed), 600)[10:]
    assert min(found) > 0.3
    assert max(found) < 4.0


def noisy_fleet(speeds, rng, rounds, slow_by=1.0):
    """Two equal replicas; `slow_by`: what r2 takes longer than it should, these rounds."""
    truth = Ttft(30.0, 0.2, 0.0)
    for _ in range(rounds):
        for name, factor in (("r1", 1.0), ("r2", slow_by)):
            tokens = rng.randrange(50, 4000)
            took = factor * truth.predict_ms(tokens, 0.0, 0) * rng.lognormvariate(0, 0.2)
            speeds.observe(name, "m", Sample(tokens, 0, 0, took))


def who_gets_a_turn_after(rounds, seed):
    """r2 holds 100 tokens more of a conversation than r1, and took six times too long so often."""
    speeds, rng = Speeds(), Random(seed)
    noisy_fleet(speeds, rng, 40)
    noisy_fleet(speeds, rng, rounds, slow_by=6.0)
    holder = candidate("r2", ttft=speeds.of("r2", "m"), hit_tokens=800)
    other = candidate("r1", ttft=speeds.of("r1", "m"), hit_tokens=700)
    query = RouteQuery(1000, "conversation")
    return POLICIES["cache-aware"](rng).rank(query, [holder, other]).replicas[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_that_stalls_for_a_while_keeps_its_conversations(seed):
    assert who_gets_a_turn_after(5, seed) == "r2"


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_that_stays_slow_loses_them(seed):
    assert who_gets_a_turn_after(15, seed) == "r1"
