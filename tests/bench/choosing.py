"""What one choice costs: match, loads, prediction and order, by the number of replicas.

    python -m tests.bench.choosing [--replicas 2 4 64]

Prompts of 4,608 tokens in blocks of 16; a fifth of the replicas hold the first 4,096 of them; three
requests per replica are in flight, of which an eighth still wait for their first token. Prints the
best of five rounds, in microseconds of one choice, and what parts of it take.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from router.blocks import BlockStored, hash_blocks
from router.blocks.hashing import TYPE_CODE
from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import POLICIES, Ask, Chooser, Contender, Prefix, RouteQuery, Speeds

BLOCK_SIZE: Final = 16
FAMILIES, SHARED_TOKENS, OWN_TOKENS, PROMPTS = 40, 4096, 512, 200
HOLDERS_SHARE: Final = 0.2
ROUNDS: Final = 5


@dataclass
class Bench:
    """A chooser under load, and what it is asked."""

    chooser: Chooser
    asks: list[tuple[Ask, list[Contender]]]

    def time_us(self, action: Callable[[int], object]) -> float:
        """Of one action, in the best of some rounds."""
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for number in range(PROMPTS):
                action(number)
            best = min(best, time.perf_counter() - began)
        return 1e6 * best / PROMPTS


def build(replicas: int) -> Bench:
    rng, now = Random(1), [0.0]
    index = MemoryIndex(clock=lambda: now[0])
    chooser = Chooser(
        index=index,
        reservations=Reservations(lambda: now[0]),
        speeds=Speeds(),
        policy=POLICIES["cache-aware"](rng),
        clock=lambda: now[0],
    )
    ids = [f"replica-{number}:8000" for number in range(replicas)]
    beginnings = [_tokens(rng, SHARED_TOKENS) for _ in range(FAMILIES)]
    for replica_id in ids:
        chooser.cache_tokens[replica_id] = 300_000
        for tokens in beginnings:
            if rng.random() < HOLDERS_SHARE:
                hashes = tuple(hash_blocks(tokens, BLOCK_SIZE))
                event = BlockStored(hashes, None, tokens, BLOCK_SIZE, medium="GPU")
                index.store(replica_id, event)
    asks = []
    for number in range(PROMPTS):
        tokens = rng.choice(beginnings) + _tokens(rng, OWN_TOKENS)
        prefix = Prefix(hash_blocks(tokens, BLOCK_SIZE), BLOCK_SIZE)
        session = f"s{number % 50}" if number % 2 else None
        asks.append((Ask(len(tokens), session), [Contender(i, "m", prefix) for i in ids]))
    claims = []
    for ask, contenders in asks:
        now[0] += 0.01
        choice = chooser.consider(ask, contenders)
        claims.append(chooser.claim(choice, choice.decision.replicas[0]))
        for claim in claims[: -max(2, replicas // 8)]:
            claim.first_token()
        if len(claims) > 3 * replicas:
            claims.pop(0).release(100)
    return Bench(chooser, asks)


def _tokens(rng: Random, count: int) -> array[int]:
    return array(TYPE_CODE, [rng.randrange(1 << 17) for _ in range(count)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 256])
    for replicas in parser.parse_args().replicas:
        figures = "  ".join(f"{name} {us:7.1f}" for name, us in measure(build(replicas)).items())
        print(f"{replicas:4} replicas, us: {figures}", flush=True)


def measure(bench: Bench) -> dict[str, float]:
    """Of one choice: the whole, and what parts of it take."""
    chooser, asks = bench.chooser, bench.asks
    ids = [contender.replica_id for contender in asks[0][1]]
    choices = [chooser.consider(*one) for one in asks]
    known = [list(choice.candidates.values()) for choice in choices]
    queries = [RouteQuery(ask.prompt_tokens, "key") for ask, _ in asks]
    return {
        "whole": bench.time_us(lambda k: chooser.consider(*asks[k])),
        "match": bench.time_us(lambda k: chooser.index.match(asks[k][1][0].prefix.hashes)),
        "loads": bench.time_us(lambda k: chooser.reservations.loads(ids)),
        "rank": bench.time_us(lambda k: chooser.policy.rank(queries[k], known[k])),
    }


if __name__ == "__main__":
    main()
