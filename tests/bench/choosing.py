"""What one choice costs: match, loads, prediction and order, by the number of replicas.

    python -m tests.bench.choosing [--replicas 2 4 64] [--processes 2]

Prompts of 4,608 tokens in blocks of 16; a fifth of the replicas hold the first 4,096 of them; three
requests per replica are in flight, of which an eighth still wait for their first token. Prints the
best of five rounds, in microseconds of one choice, and what parts of it take. With `--processes`
as many share the replicas, each with as much in flight: it is what one of them takes, and `told` is
what it tells of a request from its beginning to its end.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from router.blocks import BlockStored, hash_blocks
from router.blocks.hashing import TYPE_CODE
from router.index.memory import MemoryIndex
from router.index.reservations import Reservation, Reservations
from router.index.siblings import NoSiblings, Siblings
from router.routing import POLICIES, Ask, Chooser, Contender, Prefix, RouteQuery, Speeds
from router.shared import LoadBoard

BLOCK_SIZE: Final = 16
FAMILIES, SHARED_TOKENS, OWN_TOKENS, PROMPTS = 40, 4096, 512, 200
HOLDERS_SHARE: Final = 0.2
ROUNDS: Final = 5
SHARED: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None


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


def build(replicas: int, siblings: Siblings, seed: int = 1) -> Bench:
    rng, now = Random(seed), [0.0]
    index = MemoryIndex(clock=lambda: now[0])
    chooser = Chooser(
        index=index,
        reservations=Reservations(lambda: now[0], siblings=siblings),
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
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    for replicas in args.replicas:
        with ExitStack() as stack:
            *others, own = boards(args.processes, stack)
            kept = [build(replicas, siblings) for siblings in others]
            found = measure(build(replicas, own))
            kept.clear()
        figures = "  ".join(f"{name} {us:7.1f}" for name, us in found.items())
        print(f"{replicas:4} replicas, us: {figures}", flush=True)


def boards(processes: int, stack: ExitStack) -> list[Siblings]:
    """One for each process."""
    if processes == 1:
        return [NoSiblings()]
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=SHARED))) / "load"
    made: list[Siblings] = []
    for slot in range(processes):
        board = LoadBoard(path, slot, processes, lambda: 2.0, lambda work: None)
        stack.callback(board.close)
        board.prepare()
        made.append(board)
    return made


def measure(bench: Bench) -> dict[str, float]:
    """Of one choice: the whole, and what parts of it take."""
    chooser, asks = bench.chooser, bench.asks
    ids = [contender.replica_id for contender in asks[0][1]]
    choices = [chooser.consider(*one) for one in asks]
    known = [list(choice.candidates.values()) for choice in choices]
    queries = [RouteQuery(ask.prompt_tokens, "key") for ask, _ in asks]
    claim = Reservation(ids[0], OWN_TOKENS, 50.0, asks[0][1][0].prefix.hashes, 0.0)
    siblings, own_load = chooser.reservations.siblings, chooser.reservations.own_load

    def tell(number: int) -> None:
        siblings.begin(claim)
        siblings.write(ids[0], own_load)
        siblings.end(claim)
        siblings.write(ids[0], own_load)

    return {
        "whole": bench.time_us(lambda k: chooser.consider(*asks[k])),
        "match": bench.time_us(lambda k: chooser.index.match(asks[k][1][0].prefix.hashes)),
        "loads": bench.time_us(lambda k: chooser.reservations.loads(ids)),
        "expected": bench.time_us(
            lambda k: chooser.reservations.expected(asks[k][1][0].prefix.hashes)
        ),
        "told": bench.time_us(tell),
        "rank": bench.time_us(lambda k: chooser.policy.rank(queries[k], known[k])),
    }


if __name__ == "__main__":
    main()
