"""What an engine would do with one more request, found by running a copy of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from loadgen.simulate.engine import SimEngine
from loadgen.simulate.job import make_job
from loadgen.simulate.timeline import Timeline


def ttft_at(engine: SimEngine, tokens: array[int], hashes: Sequence[int]) -> float:
    """Seconds until the request's first token, were nothing else to arrive. O(engine's state)."""
    timeline = Timeline(engine.timeline.now)
    twin = engine.twin(timeline)
    job = make_job(tokens, hashes, engine.block_size, 1)
    moments: list[float] = []
    job.on_first_token = lambda: moments.append(timeline.now)
    twin.submit(job)
    timeline.run_until(lambda: bool(moments))
    return moments[0] - engine.timeline.now
