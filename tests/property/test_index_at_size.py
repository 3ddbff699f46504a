"""The index against a model at sizes where segments split and merge."""

import random
from collections import Counter

import pytest

from router.blocks import as_tokens, hash_blocks
from router.index import MemoryIndex
from tests.support.events import removed, stored

REPLICAS = "abc"


class Chain:
    """A prompt as engines see it: one token a block, handles of their own."""

    def __init__(self, rng: random.Random, length: int) -> None:
        self.tokens = [rng.randrange(1000) for _ in range(length)]
        self.hashes = hash_blocks(as_tokens(self.tokens), 1)
        self.handles = [block ^ 0x5555 for block in self.hashes]


@pytest.mark.parametrize("seed", range(6))
def test_any_events_leave_what_a_counter_of_copies_holds(seed):
    rng = random.Random(seed)
    index = MemoryIndex(clock=lambda: 0.0)
    chains = [Chain(rng, rng.choice([3, 40, 700, 2500])) for _ in range(12)]
    block_of = {
        handle: block
        for chain in chains
        for handle, block in zip(chain.handles, chain.hashes, strict=True)
    }
    copies: dict[str, Counter[int]] = {name: Counter() for name in REPLICAS}
    for _ in range(120):
        name, chain = rng.choice(REPLICAS), rng.choice(chains)
        held = copies[name]
        draw = rng.random()
        if draw < 0.6:
            start = rng.randrange(len(chain.tokens))
            while start and not held[chain.handles[start - 1]]:
                start //= 2
            end = min(len(chain.tokens), start + rng.choice([1, 2, 30, 300, 3000]))
            handles, tokens = chain.handles[start:end], chain.tokens[start:end]
            parent = chain.handles[start - 1] if start else None
            index.store(name, stored(handles, tokens, parent, block_size=1))
            held.update(handles)
        elif draw < 0.9:
            live = [handle for handle, count in held.items() if count]
            gone = rng.sample(live, min(len(live), rng.choice([1, 5, 100, 1500])))
            index.remove(name, removed(*gone))
            held.subtract(gone)
        elif draw < 0.93:
            index.clear(name)
            held.clear()
        elif draw < 0.96:
            index.tidy(rng.choice([1, 100, 10_000]))
        prefix = chain.hashes
        expected = {}
        for other, counts in copies.items():
            depth = 0
            while depth < len(prefix) and counts[chain.handles[depth]] > 0:
                depth += 1
            if depth:
                expected[other] = depth
        assert index.match(prefix) == expected
    for name, counts in copies.items():
        blocks = {block_of[handle] for handle, count in counts.items() if count}
        assert index.blocks_of(name) == blocks
    assert len(index) == sum(1 for counts in copies.values() for count in counts.values() if count)
    assert index.stats.conflicts == index.stats.removed_unknown == index.stats.orphaned == 0
