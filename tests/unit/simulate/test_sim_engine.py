"""The simulated engine does what the embedded engine's scheduler does, only faster."""

from functools import partial
from typing import Any

import pytest

from loadgen.simulate.engine import SimEngine
from loadgen.simulate.foresight import ttft_at
from loadgen.simulate.job import make_job
from loadgen.simulate.timeline import Timeline
from loadgen.simulate.traffic import tokens_of
from router.blocks import BlockStored, hash_blocks
from workers.engine.profile import load_profile

SIZE = 16
PROFILE = load_profile("h100-8b-bf16")


class OneStepAtATime(SimEngine):
    """The reference: every step is planned."""

    def _steps_alike(self):
        return 1


def play(kind, asks, num_blocks=400, profile=PROFILE):
    timeline = Timeline()
    events: list[Any] = []
    moments: list[Any] = []
    engine = kind(profile, SIZE, num_blocks, timeline, events.extend)

    def send(number, tokens, output_tokens):
        job = make_job(tokens, hash_blocks(tokens, SIZE), SIZE, output_tokens, 9000 + number)
        job.on_first_token = lambda: moments.append((number, "first", timeline.now))
        job.on_end = lambda finish: moments.append((number, finish, timeline.now))
        engine.submit(job)

    for number, (at, segments, output_tokens) in enumerate(asks):
        tokens = tokens_of(segments)
        timeline.at(at, partial(send, number, tokens, output_tokens))
    timeline.run()
    return engine, moments, events


ASKS = [
    (0.0, [(1, 500), (2, 40)], 60),
    (0.05, [(1, 500), (3, 40)], 200),
    (0.3, [(4, 900)], 3),
    (0.31, [(1, 500), (5, 700)], 1),
    (0.9, [(4, 900)], 80),
]


@pytest.mark.parametrize("num_blocks", [400, 120])
def test_steps_in_one_go_end_when_single_steps_do(num_blocks):
    fast, moments, _ = play(SimEngine, ASKS, num_blocks)
    slow, expected, _ = play(OneStepAtATime, ASKS, num_blocks)
    assert [m[:2] for m in moments] == [m[:2] for m in expected]
    for one, other in zip(moments, expected, strict=True):
        assert one[2] == pytest.approx(other[2], abs=1e-6)
    assert fast.tally == slow.tally
    assert fast.pool.copies() == slow.pool.copies()


def test_a_prompt_that_was_computed_before_is_a_hit():
    engine, _, _ = play(SimEngine, [(0.0, [(1, 640)], 5), (1.0, [(1, 640)], 5)])
    assert engine.tally.hit_tokens == 640 - SIZE


def test_events_name_all_that_is_cached():
    engine, _, events = play(SimEngine, ASKS)
    stored = {h for e in events if isinstance(e, BlockStored) for h in e.block_hashes}
    assert stored == set(engine.pool.copies())


def test_everything_in_a_killed_engine_ends():
    timeline = Timeline()
    ends: list[Any] = []
    engine = SimEngine(PROFILE, SIZE, 400, timeline, lambda events: None)
    tokens = tokens_of([(1, 500)])
    job = make_job(tokens, hash_blocks(tokens, SIZE), SIZE, 1000)
    job.on_end = ends.append
    engine.submit(job)
    timeline.at(0.5, engine.kill)
    timeline.run()
    assert [finish.value for finish in ends] == ["abort"]


@pytest.mark.parametrize("at", [0.02, 0.2, 0.305, 0.33, 0.95])
def test_foresight_is_what_happens_and_changes_nothing(at):
    tokens = tokens_of([(1, 500), (7, 300)])
    hashes = hash_blocks(tokens, SIZE)
    seen = []

    class Watched(SimEngine):
        pass

    timeline = Timeline()
    engine = Watched(PROFILE, SIZE, 400, timeline, lambda events: None)
    for number, (when, segments, output_tokens) in enumerate(ASKS):
        if when < at:
            prompt = tokens_of(segments)
            one = make_job(prompt, hash_blocks(prompt, SIZE), SIZE, output_tokens, 9000 + number)
            timeline.at(when, partial(engine.submit, one))
    job = make_job(tokens, hashes, SIZE, 1)
    job.on_first_token = lambda: seen.append(("real", timeline.now - at))

    def ask():
        seen.append(("foreseen", ttft_at(engine, tokens, hashes)))
        engine.submit(job)

    timeline.at(at, ask)
    timeline.run()
    assert dict(seen)["real"] == pytest.approx(dict(seen)["foreseen"], abs=1e-9)
