"""The router's chooser and the engine's pool, set up as simple as a toy, hit what the toy hits."""

from collections import OrderedDict
from pathlib import Path

import pytest

from loadgen.simulate.anchors import AT_ONCE, COMPUTED, MOST_OFF, replayed
from loadgen.simulate.toys import TOKENS_PER_S
from loadgen.workload.formats import read_trace

TRACE = read_trace(
    Path(__file__).parents[2] / "data" / "traces" / "mooncake_conversation_300.jsonl"
)


class Lru:
    """A replica of the toy: prompts enter as they arrive, whole."""

    def __init__(self, blocks):
        self.blocks, self.held, self.free_at = blocks, OrderedDict(), 0.0

    def match(self, ids):
        return next((k for k, one in enumerate(ids) if one not in self.held), len(ids))

    def put(self, ids):
        for one in reversed(ids):
            self.held[one] = None
            self.held.move_to_end(one)
        while len(self.held) > self.blocks:
            self.held.popitem(last=False)


def toy_hit_rate(choose, replicas):
    size = TRACE.block_tokens
    held = [Lru(AT_ONCE.kv_tokens // size) for _ in range(replicas)]
    hits = total = 0
    for number, row in enumerate(TRACE.rows):
        now = row.timestamp / 1e3
        hit = [min(one.match(row.hash_ids) * size, row.input_length) for one in held]
        chosen = choose(number, now, [row.input_length - tokens for tokens in hit], held)
        held[chosen].put(row.hash_ids)
        start = max(now, held[chosen].free_at)
        held[chosen].free_at = start + (row.input_length - hit[chosen]) / TOKENS_PER_S
        hits += hit[chosen]
        total += row.input_length
    return hits / total


def in_turn(number, now, uncached, held):
    return number % len(held)


def least_work(number, now, uncached, held):
    waits = [TOKENS_PER_S * max(0.0, one.free_at - now) for one in held]
    return min(range(len(held)), key=lambda k: waits[k] + uncached[k])


@pytest.mark.parametrize("replicas", [2, 8])
@pytest.mark.parametrize(
    ("policy", "choose"), [("round robin", in_turn), ("least work", least_work)]
)
@pytest.mark.parametrize("profile", [AT_ONCE, COMPUTED], ids=["at once", "computed"])
def test_hit_rates_are_the_toys(policy, choose, replicas, profile):
    figures = replayed(TRACE, policy, profile, replicas)
    assert figures.hit_rate == pytest.approx(toy_hit_rate(choose, replicas), abs=MOST_OFF)
