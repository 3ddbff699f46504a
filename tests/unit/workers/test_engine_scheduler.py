"""What a step computes: budget, chunks, admission, preemption."""

import pytest

from tests.support.engine import sequence, tokens_of
from workers.engine.pool import BlockPool
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Finish


def build(num_blocks=64, max_sequences=8, max_tokens=64):
    return Scheduler(BlockPool(num_blocks), 4, max_sequences, max_tokens)


def shares(step):
    return [(share.context, share.tokens) for share in step.shares]


def run_step(scheduler):
    """Plan, commit, sample; returns the step and what it stored."""
    step = scheduler.plan()
    stored = scheduler.commit(step)
    for share in step.shares:
        if not share.sequence.uncomputed:
            token = share.sequence.sample()
            if share.sequence.ending.reason(token, share.sequence.answered):
                share.sequence.finish = Finish.LENGTH
                scheduler.remove(share.sequence)
    return step, stored


def run_all(scheduler):
    while scheduler.has_work:
        run_step(scheduler)


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    scheduler = build(max_tokens=16)
    scheduler.add(sequence(tokens_of(0, 40), 2))
    assert [shares(run_step(scheduler)[0]) for _ in range(4)] == [
        [(0, 16)],
        [(16, 16)],
        [(32, 8)],
        [(40, 1)],
    ]
    assert not scheduler.has_work


def test_running_sequences_come_before_waiting_ones_in_the_budget():
    scheduler = build(max_tokens=16)
    scheduler.add(sequence(tokens_of(0, 8), 4))
    run_step(scheduler)
    scheduler.add(sequence(tokens_of(100, 40), 1))
    assert shares(run_step(scheduler)[0]) == [(8, 1), (0, 15)]


def test_no_more_sequences_run_than_allowed():
    scheduler = build(max_sequences=2)
    for first in (0, 100, 200):
        scheduler.add(sequence(tokens_of(first, 8), 3))
    assert len(run_step(scheduler)[0].shares) == 2
    assert len(scheduler.waiting) == 1


def test_the_last_token_is_always_computed():
    scheduler = build()
    scheduler.add(sequence(tokens_of(0, 12)))
    run_all(scheduler)
    again = sequence(tokens_of(0, 12))
    scheduler.add(again)
    step, stored = run_step(scheduler)
    assert again.hit_tokens == 8
    assert shares(step) == [(8, 4)]
    assert [(change.first, change.last) for change in stored] == [(2, 3)]


def test_vllm_fact_96_tokens_sent_again_hit_64_with_blocks_of_32():
    scheduler = Scheduler(BlockPool(64), 32, 8, 2048)
    for expected in (0, 64, 64):
        prompt = sequence(tokens_of(0, 96), block_size=32)
        scheduler.add(prompt)
        run_all(scheduler)
        assert prompt.hit_tokens == expected
    assert max(scheduler.pool.copies().values()) == 3


def test_the_last_generated_token_has_no_place_in_the_cache():
    scheduler = build()
    prompt = sequence(tokens_of(0, 7), 5)
    scheduler.add(prompt)
    run_all(scheduler)
    assert prompt.computed == 7 + 5 - 1
    assert len(scheduler.pool.copies()) == 11 // 4


def test_blocks_match_only_once_computed():
    scheduler = build(max_tokens=8)
    scheduler.add(sequence(tokens_of(0, 24), 4))
    run_step(scheduler)
    late = sequence(tokens_of(0, 24), 4)
    hits = scheduler.pool.match(late.chain.engine, 5)
    assert len(hits) == 2


def test_an_equal_prompt_in_the_same_step_shares_the_blocks():
    scheduler = build()
    twins = [sequence(tokens_of(0, 10), 3) for _ in range(2)]
    for twin in twins:
        scheduler.add(twin)
    step, stored = run_step(scheduler)
    assert shares(step) == [(0, 10), (8, 2)]
    assert len(stored) == 1
    assert [twin.hit_tokens for twin in twins] == [0, 8]
    assert twins[0].blocks[:2] == twins[1].blocks[:2]


def test_salt_and_adapter_keep_prompts_apart():
    scheduler = build()
    hits = []
    for salt in (None, "a", "b", "a"):
        prompt = sequence(tokens_of(0, 12), salt=salt)
        scheduler.add(prompt)
        run_all(scheduler)
        hits.append(prompt.hit_tokens)
    assert hits == [0, 0, 0, 8]
    assert len(scheduler.pool.copies()) == 9


def test_the_whole_prompt_must_fit_before_it_is_admitted():
    scheduler = build(num_blocks=9, max_tokens=8)
    scheduler.add(sequence(tokens_of(0, 16), 8))
    run_step(scheduler)
    scheduler.add(sequence(tokens_of(100, 28), 1))
    scheduler.add(sequence(tokens_of(200, 4), 1))
    run_step(scheduler)
    run_step(scheduler)
    assert len(scheduler.running) == 1, "first come, first served: the short one waits as well"


def test_the_last_comer_is_preempted_and_computed_again():
    scheduler = build(num_blocks=9)
    first, second = sequence(tokens_of(0, 12), 12), sequence(tokens_of(100, 12), 12)
    scheduler.add(first)
    scheduler.add(second)
    preempted = []
    while scheduler.has_work:
        preempted += run_step(scheduler)[0].preempted
    assert preempted == [second]
    assert first.answered == second.answered == 12
    assert second.preemptions == 1
    assert second.hit_tokens == 0, "what it found again does not count as a hit"
    assert scheduler.pool.used_count == 0


def test_a_preempted_sequence_goes_before_those_that_wait():
    scheduler = build(num_blocks=9)
    first, second = sequence(tokens_of(0, 12), 12), sequence(tokens_of(100, 12), 12)
    third = sequence(tokens_of(200, 16), 1)
    for one in (first, second, third):
        scheduler.add(one)
    while not second.preemptions:
        run_step(scheduler)
    assert list(scheduler.waiting) == [second, third]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_removed_sequence_leaves_no_block_behind(steps):
    scheduler = build(max_tokens=8)
    gone = sequence(tokens_of(0, 20), 20)
    scheduler.add(gone)
    for _ in range(steps):
        run_step(scheduler)
    scheduler.remove(gone)
    assert scheduler.pool.used_count == 0
    assert not scheduler.has_work
    assert len(scheduler.pool.copies()) == min(steps * 8, 20) // 4
