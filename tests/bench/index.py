"""Figures of the index on this machine: `python -m tests.bench.index`.

Prints them and writes build/bench-index.json, and the growth with replicas and blocks to
build/index-growth.json and .svg. Times are of CPU, so that other work on the machine counts
less. Runs for some minutes on one core; nothing is asserted. Blocks have 16 tokens, as vLLM's on
a GPU, but where tokens don't matter.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
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
from router.events.pieces import in_pieces
from router.index import MemoryIndex
from tests.bench.index_plot import plot

BLOCK_SIZE = 16
PAIRS = 10_000_000
BLOCKS_PER_EVENT = 128  # one prefill chunk of 2048 tokens
RESULT = Path("build/bench-index.json")
GROWTH = Path("build/index-growth.json")
PLOT = Path("build/index-growth.svg")
Figures = dict[str, float]


def main() -> None:
    figures: Figures = {}
    for part in (hash_and_match, match_over_64_replicas, ingest, index_operations, memory):
        for name, value in part().items():
            figures[name] = round(value, 3)
            print(f"{name:45} {value:12,.2f}", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    grown = growth()
    GROWTH.write_text(json.dumps(grown, indent=2) + "\n")
    PLOT.write_text(plot(grown))


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
    """From a frame's payload to the index: decode, hash, store; in a growing cache, and in a full
    one, where each stored block pushes out another. One block stored or removed for one replica
    is one operation. `decoded`: the same without the decoding."""
    stored_frames = [encode_batch(EventBatch(0.0, (event,), 0)) for event in events(1600)]
    removed_frames = [
        encode_batch(EventBatch(0.0, (BlockRemoved(tuple(event.block_hashes), "GPU", 0),), 0))
        for event in events(1600)
    ]
    half = len(stored_frames) // 2
    index, one_by_one = new_index(), new_index()
    growing = apply(index, stored_frames[:half])
    turnover = [
        payload
        for pair in zip(stored_frames[half:], removed_frames[:half], strict=True)
        for payload in pair
    ]
    full = apply(index, turnover)
    stored_single = apply(one_by_one, list(single_stores(200)))
    in_chains = apply(one_by_one, list(single_chains(200)))
    apply(one_by_one, stored_frames[:half])
    single = apply(one_by_one, list(single_removals(200)))
    blocks = half * BLOCKS_PER_EVENT
    return {
        "growing_frames_block_operations_per_s": blocks / sum(growing),
        "growing_decoded_block_operations_per_s": blocks / growing[1],
        "full_frames_block_operations_per_s": 2 * blocks / sum(full),
        "full_decoded_block_operations_per_s": 2 * blocks / full[1],
        "decoding_stored_blocks_per_s": blocks / growing[0],
        "stores_one_per_event_frames_per_s": 200 * BLOCKS_PER_EVENT / sum(stored_single),
        "chains_one_per_event_frames_per_s": 200 * BLOCKS_PER_EVENT / sum(in_chains),
        "removals_one_per_event_frames_per_s": 200 * BLOCKS_PER_EVENT / sum(single),
    }


def single_stores(count: int) -> Iterator[bytes]:
    """As engines report what they generate: an event per block, 128 requests' in a step."""
    rng = random.Random(1)
    parents: list[int | None] = [None] * BLOCKS_PER_EVENT
    for _ in range(count):
        handles = [rng.getrandbits(64) for _ in parents]
        singles = tuple(
            stored((handle,), random_ids(rng, 1), parent=parent)
            for handle, parent in zip(handles, parents, strict=True)
        )
        parents = [*handles]
        yield encode_batch(EventBatch(0.0, singles, 0))


def single_chains(count: int) -> Iterator[bytes]:
    """As SGLang reports a prompt: an event per block, each the parent of the next."""
    rng = random.Random(2)
    for _ in range(count):
        handles = [rng.getrandbits(64) for _ in range(BLOCKS_PER_EVENT)]
        singles = tuple(
            stored((handle,), random_ids(rng, 1), parent=parent)
            for handle, parent in zip(handles, [None, *handles], strict=False)
        )
        yield encode_batch(EventBatch(0.0, singles, 0))


def single_removals(count: int) -> Iterator[bytes]:
    """As vLLM evicts: an event per block, a frame per engine step."""
    for event in events(count):
        removals = tuple(BlockRemoved((handle,), "GPU", 0) for handle in event.block_hashes)
        yield encode_batch(EventBatch(0.0, removals, 0))


def apply(index: MemoryIndex, payloads: Sequence[bytes]) -> tuple[float, float]:
    """What `follow` does with frames, and a match now and then, as requests ask for.

    CPU seconds of decoding, and of all else.
    """
    decoding_s = applying_s = 0.0
    for number, payload in enumerate(payloads):
        began = time.process_time()
        batch = decode_batch(payload)
        decoded = time.process_time()
        for event in in_pieces(batch.events):
            if isinstance(event, BlockStored):
                index.store("a", event)
            elif isinstance(event, BlockRemoved):
                index.remove("a", event)
            elif isinstance(event, list):
                index.store_all("a", event)
        if number % 16 == 0:
            index.match([number])
        del batch
        applied = time.process_time()
        decoding_s += decoded - began
        applying_s += applied - decoded
    return decoding_s, applying_s


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
        assert len(index) == 0

    removals = [BlockRemoved(tuple(event.block_hashes), "GPU", 0) for event in ready]
    store_s, remove_s = timed_us(store_all) / 1e6, timed_us(remove_all) / 1e6
    store_all()
    clear_us = timed_us(lambda: index.clear("a"))
    slices = []
    while index.is_untidy:
        slices.append(timed_us(index.tidy))
    return {
        "store_blocks_per_s": blocks / store_s,
        "remove_blocks_per_s": blocks / remove_s,
        f"clear_{blocks}_blocks_us": clear_us,
        "longest_slice_of_cleaning_up_us": max(slices),
    }


def memory() -> Figures:
    """Ten million (block, replica) pairs in a child each, under a bound of 64 bytes a pair."""
    figures = {}
    for name, replicas, shared in (("disjoint", 64, 1), ("each_block_on_4", 64, 4)):
        for key, value in in_child(replicas, shared, PAIRS).items():
            figures[f"{name}_{key}"] = value
    return figures


def growth() -> dict[str, dict[str, Figures]]:
    """Match time and memory by the number of replicas, a tenth of a million blocks each time, and
    by the number of blocks on 64 replicas."""
    by_replicas = {str(n): in_child(n, 1, 100_000) for n in (1, 4, 16, 64, 256)}
    by_blocks = {str(n): in_child(64, 1, n) for n in (100_000, 1_000_000, PAIRS)}
    return {"by_replicas": by_replicas, "by_blocks": by_blocks}


@cache
def in_child(replicas: int, shared: int, pairs: int) -> Figures:
    command = [sys.executable, "-m", "tests.bench.index", "--fill"]
    command += [str(replicas), str(shared), str(pairs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def fill(replicas: int, shared: int, pairs: int) -> Figures:
    """An index with `pairs` pairs in prompts of 625 blocks, each held by `shared` replicas."""
    index = MemoryIndex(clock=time.monotonic, max_bytes=max(64 * pairs, 2**24))
    rng = random.Random(pairs)
    process = psutil.Process()
    before: int = process.memory_info().rss
    seconds = 0.0
    first: list[int] = []
    for number in range(pairs // (625 * shared)):
        ids = rng.choices(range(128_000), k=625)
        first = first or ids
        handles = tuple(rng.getrandbits(64) for _ in range(625))
        event = stored(handles, ids, block_size=1)
        started = time.process_time()
        for copy in range(shared):
            index.store(f"r{(number + copy) % replicas}", event)
        seconds += time.process_time() - started
    after: int = process.memory_info().rss
    held = len(index)
    for number in range(replicas):  # a prompt that all replicas hold a part of
        part = rng.randrange(1, 626)
        index.store(f"r{number}", stored(range(part), first[:part], block_size=1))
    prefix = hash_blocks(as_tokens(first), 1)
    times = sorted(timed_us(lambda: index.match(prefix)) for _ in range(2000))
    return {
        "pairs": float(held),
        "trimmed_or_refused": float(index.stats.trimmed + index.stats.refused),
        "bytes_per_pair_by_gauge": index.bytes / held,
        "bytes_per_pair_by_process": (after - before) / held,
        "store_ns_per_pair": seconds / held * 1e9,
        "match_625_blocks_p50_us": times[1000],
        "match_625_blocks_p99_us": times[1980],
    }


def new_index() -> MemoryIndex:
    return MemoryIndex(clock=time.monotonic, max_bytes=2**30)


def events(count: int, seed: int = 0) -> Iterator[BlockStored]:
    rng = random.Random(seed)
    for _ in range(count):
        handles = tuple(rng.getrandbits(64) for _ in range(BLOCKS_PER_EVENT))
        yield stored(handles, random_ids(rng, BLOCKS_PER_EVENT))


def stored(
    handles: range | tuple[int, ...],
    ids: list[int],
    block_size: int = BLOCK_SIZE,
    parent: int | None = None,
) -> BlockStored:
    return BlockStored(
        tuple(handles),
        parent,
        ids,
        block_size,
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
    if sys.argv[1:2] == ["--fill"]:
        print(json.dumps(fill(*map(int, sys.argv[2:5]))))
    else:
        main()
