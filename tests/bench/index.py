"""Figures of the index on this machine: `python -m tests.bench.index`.

Prints them and writes build/bench-index.json. Runs for about half a minute on one core; nothing
is asserted. Blocks have 16 tokens, as vLLM's on a GPU.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from router.blocks import (
    BlockRemoved,
    BlockStored,
    EventBatch,
    as_tokens,
    decode_batch,
    encode_batch,
    hash_blocks,
)
from router.index import MemoryIndex

BLOCK_SIZE = 16
BLOCKS_PER_EVENT = 128  # one prefill chunk of 2048 tokens
RESULT = Path("build/bench-index.json")
Figures = dict[str, float]


def main() -> None:
    figures: Figures = {}
    for part in (hash_and_match, match_over_64_replicas, ingest, index_operations, memory):
        for name, value in part().items():
            figures[name] = round(value, 3)
            print(f"{name:45} {value:12,.2f}", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")


def hash_and_match() -> Figures:
    """Per prompt; the match is against one replica that holds all of it."""
    figures: Figures = {}
    for thousands in (1, 10, 100):
        ids = random_ids(random.Random(thousands), thousands * 1000 // BLOCK_SIZE)
        tokens = as_tokens(ids)
        index = new_index()
        index.store("a", stored(range(len(ids) // BLOCK_SIZE), ids))
        prefix = hash_blocks(tokens, BLOCK_SIZE)
        figures[f"hash_{thousands}k_tokens_us"] = time_us(partial(hash_blocks, tokens, BLOCK_SIZE))
        figures[f"match_{thousands}k_tokens_us"] = time_us(partial(index.match, prefix))
    return figures


def match_over_64_replicas() -> Figures:
    """A prompt of 10,000 tokens (625 blocks), of which 64 replicas hold heads of any length."""
    rng = random.Random(64)
    ids = random_ids(rng, 625)
    index = new_index()
    for number in range(64):
        held = rng.randrange(1, 626)
        index.store(f"r{number}", stored(range(held), ids[: held * BLOCK_SIZE]))
    prefix = hash_blocks(as_tokens(ids), BLOCK_SIZE)
    times = sorted(timed_us(lambda: index.match(prefix)) for _ in range(5000))
    return {
        "match_625_blocks_64_replicas_p50_us": times[2500],
        "match_625_blocks_64_replicas_p99_us": times[4950],
    }


def ingest() -> Figures:
    """From a frame's payload to the index: decode, hash, store."""
    payloads = [encode_batch(EventBatch(0.0, (event,), 0)) for event in events(800)]
    blocks = len(payloads) * BLOCKS_PER_EVENT
    index = new_index()
    started = time.process_time()
    for payload in payloads:
        for event in decode_batch(payload).events:
            assert isinstance(event, BlockStored)
            index.store("a", event)
    elapsed = time.process_time() - started
    decode_started = time.process_time()
    for payload in payloads:
        decode_batch(payload)
    decoded = time.process_time() - decode_started
    return {
        "ingest_blocks_per_s": blocks / elapsed,
        "ingest_decode_only_blocks_per_s": blocks / decoded,
    }


def index_operations() -> Figures:
    """Events already decoded: stores include our hash."""
    index = new_index()
    ready = list(events(1600))
    blocks = len(ready) * BLOCKS_PER_EVENT

    def store_all() -> None:
        for event in ready:
            index.store("a", event)

    def remove_all() -> None:
        for event in removals:
            index.remove("a", event)

    removals = [BlockRemoved(event.block_hashes, "GPU", 0) for event in ready]
    store_s, remove_s = timed_us(store_all) / 1e6, timed_us(remove_all) / 1e6
    store_all()
    return {
        "store_blocks_per_s": blocks / store_s,
        "remove_blocks_per_s": blocks / remove_s,
        f"clear_{blocks}_blocks_us": timed_us(lambda: index.clear("a")),
    }


def memory() -> Figures:
    """Growth of a process that holds a million (block, replica) pairs, in a child each."""
    return {
        "bytes_per_pair_1_replica": float(in_child(1)),
        "bytes_per_pair_4_replicas_disjoint": float(in_child(4)),
        "bytes_per_pair_4_replicas_same_blocks": float(in_child(-4)),
    }


def in_child(replicas: int) -> str:
    command = [sys.executable, "-m", "tests.bench.index", "--memory", str(replicas)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def grow(replicas: int) -> float:
    """Bytes per pair at a million pairs; a negative number of replicas hold the same blocks."""
    index = new_index()
    process = psutil.Process()
    before: int = process.memory_info().rss
    count = 1_000_000 // BLOCKS_PER_EVENT // abs(replicas)
    for number in range(abs(replicas)):
        for event in events(count, seed=number if replicas > 0 else 0):
            index.store(str(number), event)
    after: int = process.memory_info().rss
    return (after - before) / len(index)


def new_index() -> MemoryIndex:
    return MemoryIndex(clock=time.monotonic, max_bytes=2**30)


def events(count: int, seed: int = 0) -> Iterator[BlockStored]:
    rng = random.Random(seed)
    for _ in range(count):
        handles = tuple(rng.getrandbits(64) for _ in range(BLOCKS_PER_EVENT))
        yield stored(handles, random_ids(rng, BLOCKS_PER_EVENT))


def stored(handles: range | tuple[int, ...], ids: list[int]) -> BlockStored:
    return BlockStored(
        tuple(handles),
        None,
        ids,
        BLOCK_SIZE,
        medium="GPU",
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


def random_ids(rng: random.Random, blocks: int) -> list[int]:
    return rng.choices(range(128_000), k=blocks * BLOCK_SIZE)


def time_us(work: Callable[[], object], repeats: int = 200) -> float:
    return median(timed_us(work) for _ in range(repeats))


def timed_us(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e6


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print(grow(int(sys.argv[2])))
    else:
        main()
