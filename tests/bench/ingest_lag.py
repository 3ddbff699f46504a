"""How long a burst of events holds the event loop: `python -m tests.bench.ingest_lag`.

One frame of 20,000 blocks, as one event, as an event for each block, and as removals; each is
followed as the router does, while another task takes every turn that it gets. Prints the longest
CPU time between two of its turns, beside what decoding such a frame in one go takes.
"""

import asyncio
import gc
import json
import random
import time
from contextlib import suppress
from pathlib import Path

from router.blocks import (
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    Frame,
    decode_batch,
    encode_batch,
)
from router.events import LinkUp, ReplicaTrust, Trust, follow
from router.index import MemoryIndex
from tests.support.events import ScriptedSource

BLOCKS = 20_000
BLOCK_SIZE = 16
ROUNDS = 5
RESULT = Path("build/bench-ingest-lag.json")


def bursts(rng: random.Random) -> dict[str, tuple[Event, ...]]:
    """By name; removals are of blocks that the first one stores."""
    handles = tuple(rng.getrandbits(64) for _ in range(BLOCKS))
    ids = rng.choices(range(128_000), k=BLOCKS * BLOCK_SIZE)
    singles = tuple(
        BlockStored((rng.getrandbits(64),), None, ids[at : at + BLOCK_SIZE], BLOCK_SIZE)
        for at in range(0, len(ids), BLOCK_SIZE)
    )
    return {
        "one event": (BlockStored(handles, None, ids, BLOCK_SIZE),),
        "an event a block": singles,
        "removals": tuple(BlockRemoved((handle,)) for handle in reversed(handles)),
    }


async def steps_ms(index: MemoryIndex, frame: Frame) -> list[float]:
    """CPU milliseconds between the turns of another task while a frame is applied."""
    source = ScriptedSource([])
    trust = ReplicaTrust("a")
    task = asyncio.create_task(follow("a", source, index, trust))
    source.say(LinkUp())
    await source.drained()
    assert trust.trust is Trust.EXACT
    source.say(frame)
    steps, before = [], index.stats.stored + index.stats.removed
    drained = asyncio.create_task(source.drained())
    last = time.thread_time()
    while not drained.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        steps.append(1e3 * (now - last))
        last = now
    assert index.stats.stored + index.stats.removed == before + BLOCKS
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return steps


async def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    made = bursts(random.Random(4))
    gc.freeze()  # what the bench has made is not the router's to look through
    for name, events in made.items():
        payload = encode_batch(EventBatch(0.0, events, 0))
        longest, in_one_go, turns = [], [], 0
        for _ in range(ROUNDS):
            began = time.thread_time()
            decode_batch(payload)
            in_one_go.append(1e3 * (time.thread_time() - began))
            index = MemoryIndex(clock=time.monotonic)
            if name == "removals":
                index = KeptBlocks(clock=time.monotonic)
                for event in made["one event"]:
                    assert isinstance(event, BlockStored)
                    index.store("a", event)
            steps = await steps_ms(index, Frame(0, payload))
            longest.append(max(steps))
            turns = len(steps)
        figures[f"{name}: longest step, ms"] = sorted(longest)[ROUNDS // 2]
        figures[f"{name}: decoding in one go, ms"] = sorted(in_one_go)[ROUNDS // 2]
        figures[f"{name}: turns of other tasks"] = turns
    return figures


class KeptBlocks(MemoryIndex):
    """Keeps what it holds when an epoch begins, so that there is something to remove."""

    def clear(self, replica_id: str) -> None:
        """Nothing."""


def main() -> None:
    figures = asyncio.run(measure())
    for name, value in figures.items():
        print(f"{name:45} {value:10,.2f}")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
