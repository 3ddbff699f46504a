"""The loop in virtual time: events against the real cache, time, aborts, resets, new lives."""

import asyncio
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.blocks import BlockStored, as_tokens
from tests.support.engine import (
    FLAT,
    Follower,
    Heard,
    VirtualClock,
    core,
    eventually,
    kinds,
    sequence,
    stepping,
    tokens_of,
)
from workers.engine.sequence import Finish


async def finished(*sequences):
    await eventually(lambda: all(one.finish for one in sequences), "the end", every_s=0)


def stored_events(follower):
    """All stored events, in order."""
    events = [event for batch in follower.batches for event in batch]
    return [event for event in events if isinstance(event, BlockStored)]


async def answering(one):
    await eventually(lambda: one.answered > 3, "the fourth token", every_s=0)


def random_prompt(rng):
    """Prompts that share prefixes: a few stems, then something of their own."""
    stem = [rng.randrange(4)] * rng.randrange(0, 30)
    return as_tokens([*stem, *(rng.randrange(50) for _ in range(rng.randrange(1, 12)))])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(20, 60), sequences=st.integers(1, 6))
def test_whoever_follows_the_events_knows_the_cache(seed, num_blocks, sequences):
    asyncio.run(random_life(Random(seed), num_blocks, sequences))


async def random_life(rng, num_blocks, max_num_seqs):
    follower, clock = Follower(), VirtualClock()
    engine_core = core(
        follower,
        clock,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.choice([5, 16, 64]),
    )
    started = []
    async with stepping(engine_core):
        for _ in range(30):
            salt = rng.choice([None, None, "tenant"])
            started.append(sequence(random_prompt(rng), rng.randrange(1, 30), salt=salt))
            engine_core.submit(started[-1])
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            if rng.random() < 0.2:
                engine_core.abort(rng.choice(started))
            if rng.random() < 0.1:
                await engine_core.reset_cache()
        await finished(*started)
        # A reset is announced with the next step only.
        last = sequence(as_tokens([7]), 1)
        engine_core.submit(last)
        await finished(last)
    assert engine_core.cached() == follower.copies
    assert engine_core.pool.used_count == 0
    assert engine_core.load == 0


async def test_steps_follow_one_another_without_drift():
    clock = VirtualClock()
    engine_core = core(Follower(), clock)
    one = sequence(tokens_of(0, 5), 50)
    async with stepping(engine_core):
        engine_core.submit(one)
        await finished(one)
    assert clock.time_s == pytest.approx(0.5)
    assert one.moments.first_token == pytest.approx(0.01)


async def test_a_late_loop_catches_up_on_the_deadlines():
    class LateClock(VirtualClock):
        async def sleep_until(self, moment):
            await super().sleep_until(moment)
            self.time_s = max(self.time_s, moment) + 0.004

    clock = LateClock()
    engine_core = core(Follower(), clock)
    one = sequence(tokens_of(0, 5), 100)
    async with stepping(engine_core):
        engine_core.submit(one)
        await finished(one)
    assert 1.0 <= clock.time_s < 1.02, "100 steps of 10 ms, though each wake-up was 4 ms late"


async def test_the_host_time_delays_admission():
    profile = msgspec.structs.replace(FLAT, host_ms=7.0)
    clock = VirtualClock()
    engine_core = core(Follower(), clock, profile=profile)
    one = sequence(tokens_of(0, 5))
    async with stepping(engine_core):
        engine_core.submit(one)
        await finished(one)
    assert one.moments.scheduled == pytest.approx(0.007)
    assert one.moments.first_token == pytest.approx(0.017)


async def test_a_hit_publishes_nothing_and_generated_blocks_are_stored():
    follower = Follower()
    engine_core = core(follower, VirtualClock())
    async with stepping(engine_core):
        for max_tokens in (1, 1, 7):
            one = sequence(tokens_of(0, 9), max_tokens)
            engine_core.submit(one)
            await finished(one)
    assert [kinds(batch) for batch in follower.batches] == ["S", "S"]
    first, grown = stored_events(follower)
    assert list(first.token_ids) == list(range(8))
    assert list(grown.token_ids) == [8, 1_000_000, 1_000_001, 1_000_002]
    assert grown.parent_block_hash == first.block_hashes[-1]


async def test_each_chunk_of_a_prefill_is_one_event():
    follower = Follower()
    engine_core = core(follower, VirtualClock(), max_num_batched_tokens=10)
    async with stepping(engine_core):
        one = sequence(tokens_of(0, 24))
        engine_core.submit(one)
        await finished(one)
    assert [len(event.block_hashes) for event in stored_events(follower)] == [2, 3, 1]


async def test_removals_come_before_what_took_their_place():
    follower = Follower()
    engine_core = core(follower, VirtualClock(), num_blocks=5)
    async with stepping(engine_core):
        for first in (0, 100):
            one = sequence(tokens_of(first, 12))
            engine_core.submit(one)
            await finished(one)
    assert [kinds(batch) for batch in follower.batches] == ["S", "RRS"]


async def test_a_reset_is_announced_with_the_next_step():
    follower = Follower()
    engine_core = core(follower, VirtualClock())
    async with stepping(engine_core):
        first = sequence(tokens_of(0, 9))
        engine_core.submit(first)
        await finished(first)
        assert await engine_core.reset_cache()
        assert await engine_core.reset_cache()
        assert len(follower.batches) == 1
        assert engine_core.cached() == {}
        second = sequence(tokens_of(0, 9))
        engine_core.submit(second)
        await finished(second)
    assert kinds(follower.batches[1]) == "CCS"
    assert second.hit_tokens == 0


async def test_a_reset_is_refused_while_something_runs():
    engine_core = core(Follower(), VirtualClock())
    one = sequence(tokens_of(0, 9), 100)
    async with stepping(engine_core):
        engine_core.submit(one)
        await answering(one)
        assert not await engine_core.reset_cache()
        await finished(one)


async def test_events_stay_true_through_a_preemption():
    follower = Follower()
    engine_core = core(follower, VirtualClock(), num_blocks=9)
    both = [sequence(tokens_of(first, 12), 12) for first in (0, 100)]
    async with stepping(engine_core):
        for one in both:
            engine_core.submit(one)
        await finished(*both)
    assert [one.preemptions for one in both] == [0, 1]
    assert [one.answered for one in both] == [12, 12]
    assert engine_core.cached() == follower.copies


async def test_an_abort_frees_the_blocks_and_tells_the_listener():
    engine_core = core(Follower(), VirtualClock())
    one = sequence(tokens_of(0, 9), 200)
    async with stepping(engine_core):
        engine_core.submit(one)
        await answering(one)
        engine_core.abort(one)
        await finished(one)
    assert one.finish is Finish.ABORT
    assert isinstance(one.listener, Heard)
    assert one.listener.lost
    assert engine_core.pool.used_count == 0
    assert engine_core.cached()


async def test_the_events_of_a_step_come_after_its_tokens():
    order = []

    class Watcher(Follower):
        def publish(self, events):
            order.append("events")
            super().publish(events)

    class Orderly(Heard):
        def token(self, token, finish):
            order.append("token")
            return super().token(token, finish)

    one = sequence(tokens_of(0, 9))
    one.listener = Orderly()
    engine_core = core(Watcher(), VirtualClock())
    async with stepping(engine_core):
        engine_core.submit(one)
        await finished(one)
    assert order == ["token", "events"]


@pytest.mark.parametrize("keep_cache", [True, False])
async def test_a_new_life_keeps_the_cache_only_if_asked(keep_cache):
    follower = Follower()
    engine_core = core(follower, VirtualClock())
    async with stepping(engine_core):
        one = sequence(tokens_of(0, 9), 400)
        engine_core.submit(one)
        await answering(one)
    engine_core.restart(keep_cache=keep_cache)
    assert one.finish is Finish.ABORT
    assert engine_core.pool.used_count == 0
    async with stepping(engine_core):
        again = sequence(tokens_of(0, 9))
        engine_core.submit(again)
        await finished(again)
    assert again.hit_tokens == (8 if keep_cache else 0)


async def test_hashes_forgotten_by_the_cache_are_forgotten_by_the_core():
    engine_core = core(Follower(), VirtualClock(), num_blocks=9)
    async with stepping(engine_core):
        for first in range(0, 4000, 100):
            one = sequence(tokens_of(first, 20))
            engine_core.submit(one)
            await finished(one)
    assert len(engine_core.cached()) <= engine_core.pool.capacity
    assert len(engine_core._keys) == len(engine_core.cached())
