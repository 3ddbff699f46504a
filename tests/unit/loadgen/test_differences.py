"""Which differences are real."""

import random

from loadgen.differences import clusters, differences
from loadgen.record import Record
from tests.support.records import failed, record


def run(mean_ms: float, seed: int, sessions: int = 60, hit: int = 50) -> list[Record]:
    rng = random.Random(seed)
    found = []
    for n in range(sessions):
        ttft_s = max(0.001, rng.gauss(mean_ms, 0.2 * mean_ms)) / 1000
        fields = {"prompt_tokens": 100, "cached_tokens": hit}
        found.append(record(n, scheduled_s=1.0, first_token_s=1.0 + ttft_s, **fields))
    return found


def against(base: list[Record], of: list[Record]):
    return {one.metric: one for one in differences(clusters([base]), clusters([of]))}


def test_large_change_is_real_with_its_sign_and_size():
    found = against(run(200, 1), run(100, 2, hit=90))
    p50 = found["P50 TTFT"]
    assert not p50.is_noise
    assert p50.low is not None
    assert p50.high is not None
    assert p50.low < -70 < p50.high + 60
    assert 0.4 < (p50.ratio or 0) < 0.6
    assert found["hit rate"].difference == 40
    assert not found["hit rate"].is_noise


def test_same_distribution_is_noise():
    verdicts = [against(run(100, 2 * n), run(100, 2 * n + 1))["P50 TTFT"] for n in range(20)]
    assert sum(not one.is_noise for one in verdicts) <= 4


def test_turns_of_one_conversation_are_no_independent_evidence():
    """One slow conversation of 100 turns among 100: a request-wise test would call it real."""
    base = [record(n, turn=k) for n in range(10) for k in range(10)]
    slow = [record(n, turn=k, first_token_s=1.5 + (n == 0)) for n in range(10) for k in range(10)]
    assert against(base, slow)["mean TTFT"].is_noise


def test_side_without_answers_has_no_difference():
    found = against([record(0), record(1)], [failed(number=0), failed(number=1)])
    assert found["P95 TTFT"].difference is None
    assert found["errors"].difference == 100


def test_sub_agents_are_drawn_with_their_task():
    records = [record(0, session="a0"), record(1, session="a0.0"), record(2, session="a1")]
    assert sorted(key for _, key in clusters([records])) == ["a0", "a1"]
