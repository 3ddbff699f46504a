"""A prefix is copied while many ask for it, and its copies go when they are needed no more."""

from loadgen.simulate.copies import Tide, levels

SMALL = Tide(
    rates=(2.0, 80.0, 2.0, 2.0), phase_s=12.0, hot_tokens=4000, others=60, other_tokens=1500,
    replicas=3, kv_tokens=16_000,
)  # fmt: skip


def test_copies_grow_with_what_is_asked_and_shrink_with_it():
    before, high, _, after = levels(SMALL, "cache-aware")
    assert before.held <= 1.0
    assert high.held >= 2.5
    assert after.held <= 1.0
    assert after.hot_p95_ms < 1.5 * before.hot_p95_ms
    assert after.others_hit_rate > high.others_hit_rate
