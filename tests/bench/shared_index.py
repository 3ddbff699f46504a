"""What a central index adds to a decision: own and central in turns, within one run.

Prompts arrive by chance (Poisson) from another process; the time of a decision is from a prompt's
arrival to the choice of its replica, so whatever keeps the event loop counts. `own`: the router
follows the events itself. `central`: another process does, and is read in its memory (with
`--ask`: asked over a Unix socket). Both follow the same events. Run by `make bench-shared-index`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvloop

from router.blocks import BlockRemoved, BlockStored, Hashes, as_tokens, hash_blocks
from router.central import Address, AskLimits, CentralIndex, Desk, SharedMemory
from router.events.keeper import Keeper
from router.index.answers import Known
from router.index.reservations import Reservations
from router.index.tiers import TieredIndex
from router.routing import POLICIES, Chooser, Speeds
from router.routing.choosing import Ask, Contender, Prefix
from tests.support.builders import NoSources

REPLICAS = [f"r{number}" for number in range(4)]
PROMPTS, TOKENS, BLOCK = 64, 8192, 16
MAX_BYTES = 64 * 2**20
EVENT_BLOCKS = 32
SLICE_S = 2.0
_DUE = struct.Struct("<d")


@dataclass
class Events:
    """An index, and what engines keep saying: a stored event of 32 blocks and a removed one."""

    blocks_per_s: float
    index: TieredIndex = field(
        default_factory=lambda: TieredIndex(clock=time.monotonic, max_bytes=MAX_BYTES)
    )

    def __post_init__(self) -> None:
        for number in range(PROMPTS):
            tokens = prompt(number)
            for place, replica_id in enumerate(REPLICAS):
                blocks = TOKENS // BLOCK if place == number % 4 else 96 * (place + 1)
                handles = tuple(range(number * 4096 + 1, number * 4096 + 1 + blocks))
                event = BlockStored(handles, None, tokens[: blocks * BLOCK], BLOCK)
                self.index.store(replica_id, event)

    async def keep_coming(self) -> None:
        rng, number, recent = random.Random(2), 1 << 32, list[tuple[str, tuple[int, ...]]]()
        while self.blocks_per_s:
            await asyncio.sleep(rng.expovariate(self.blocks_per_s / EVENT_BLOCKS))
            replica_id = rng.choice(REPLICAS)
            handles = tuple(range(number, number + EVENT_BLOCKS))
            number += EVENT_BLOCKS
            tokens = [number + i & 0xFFFFFF for i in range(EVENT_BLOCKS * BLOCK)]
            self.index.store(replica_id, BlockStored(handles, None, tokens, BLOCK))
            recent.append((replica_id, handles))
            if len(recent) > 500:
                self.index.remove(recent[0][0], BlockRemoved(recent.pop(0)[1]))


def prompt(number: int) -> list[int]:
    rng = random.Random(number)
    return [rng.randrange(50_000) for _ in range(TOKENS)]


def serve(
    path: str, blocks_per_s: float, is_asked: bool, pipe: multiprocessing.connection.Connection
) -> None:
    """The central index's process."""

    async def run() -> None:
        memory = SharedMemory()
        index = TieredIndex(clock=time.monotonic, max_bytes=MAX_BYTES, allocate=memory.allocate)
        events, keeper = Events(blocks_per_s, index), Keeper(index, NoSources())
        for replica_id in REPLICAS:
            keeper.of(replica_id)
        desk = Desk(index, keeper, memory=None if is_asked else memory.place)
        async with desk.open(Address(path=path)):
            tasks = [asyncio.create_task(desk.tell()), asyncio.create_task(events.keep_coming())]
            pipe.send("ready")
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            for task in tasks:
                task.cancel()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send((usage.ru_utime + usage.ru_stime, desk.counters.questions))

    uvloop.run(run())


def arrive(rate: float, target: str, seconds: float) -> None:
    """Prompts come: each is the time at which it came."""
    rng = random.Random(3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.expovariate(rate))
            out.sendto(_DUE.pack(time.monotonic()), target)


async def measure(
    rate: float, blocks_per_s: float, folder: Path, rounds: int, *, is_asked: bool
) -> dict[str, object]:
    """Decision times of both, in ms."""
    ours, theirs = multiprocessing.Pipe()
    path = str(folder / "index")
    index = multiprocessing.Process(target=serve, args=(path, blocks_per_s, is_asked, theirs))
    index.start()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, ours.recv)
    events = Events(blocks_per_s)
    chooser = Chooser(
        *(events.index, Reservations(time.monotonic), Speeds()),
        *(POLICIES["cache-aware"](random.Random(0)), time.monotonic),
    )
    central = CentralIndex(Address(path=path), limits=AskLimits(deadline_s=0.05))
    running = asyncio.create_task(central.run())
    while len(central.replicas()) < len(REPLICAS):  # noqa: ASYNC110  a bench
        await asyncio.sleep(0.01)
    hashes = [hash_blocks(as_tokens(prompt(number)), BLOCK) for number in range(PROMPTS)]
    rng = random.Random(4)

    async def own(prefix: Hashes) -> tuple[Known, str]:
        return events.index, ""

    async def asked(prefix: Hashes) -> tuple[Known, str]:
        return await central.ask([prefix])

    async def decide(due: float, source: Source, times: list[float]) -> None:
        blocks = rng.choice(hashes)
        prefix = Prefix(blocks, BLOCK)
        known, _ = await source(blocks)
        contenders = [Contender(replica_id, "m", prefix) for replica_id in REPLICAS]
        chooser.consider(Ask(TOKENS), contenders, known)
        times.append((time.monotonic() - due) * 1e3)

    spent: dict[str, list[float]] = {"own": [], "central": []}
    cpu = dict.fromkeys(spent, 0.0)
    for number in range(2 * rounds):
        name, source = ("own", own) if number % 2 == 0 else ("central", asked)
        following = asyncio.create_task(events.keep_coming()) if name == "own" else None
        began = time.process_time()
        await _slice(rate, folder, partial(decide, source=source, times=spent[name]))
        cpu[name] += time.process_time() - began
        if following is not None:
            following.cancel()
    ours.send("end")
    index_cpu_s, questions = await loop.run_in_executor(None, ours.recv)
    running.cancel()
    await asyncio.wait([running])
    index.join()
    found = {name: _shares(times) for name, times in spent.items()}
    return {
        "rate": rate,
        "event_blocks_per_s": blocks_per_s,
        "ms": found,
        "added_ms": {key: found["central"][key] - found["own"][key] for key in found["own"]},
        "outcomes": dict(central.outcomes),
        "router_cpu_us": {n: 1e6 * cpu[n] / len(spent[n]) for n in spent},
        "index_cpu_s": index_cpu_s,
        "questions": questions,
    }


Source = Callable[[Hashes], Awaitable[tuple[Known, str]]]


async def _slice(rate: float, folder: Path, decide: Callable[[float], Awaitable[None]]) -> None:
    """Some seconds of arrivals."""
    target, loop, tasks = str(folder / "arrivals"), asyncio.get_running_loop(), set()
    Path(target).unlink(missing_ok=True)  # noqa: ASYNC240
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.setblocking(False)
        inbox.bind(target)

        def read() -> None:
            while True:
                try:
                    (due,) = _DUE.unpack(inbox.recv(64))
                except BlockingIOError:
                    return
                task = asyncio.ensure_future(decide(due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        loop.add_reader(inbox, read)
        sender = multiprocessing.Process(target=arrive, args=(rate, target, SLICE_S))
        sender.start()
        await loop.run_in_executor(None, sender.join)
        await asyncio.sleep(0.1)
        loop.remove_reader(inbox)


def _shares(times: list[float]) -> dict[str, float]:
    times.sort()
    return {name: times[int(share * len(times))] for name, share in SHARES.items()}


SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 300, 500])
    parser.add_argument("--event-blocks", type=float, default=10_000, help="a second, over all")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ask", action="store_true", help="over the socket, as other hosts do")
    args = parser.parse_args()
    rows = []
    print(f"{TOKENS // BLOCK} blocks a prompt; {args.event_blocks:g} blocks of events a second")
    for rate in args.rates:
        what = rate, args.event_blocks
        with tempfile.TemporaryDirectory() as folder:
            row = uvloop.run(measure(*what, Path(folder), args.rounds, is_asked=args.ask))
        rows.append(row)
        print(f"{rate:g} questions a second, load {os.getloadavg()[0]:.1f}")
        for key in ("ms", "added_ms", "outcomes", "router_cpu_us"):
            print(f"  {key}: {json.dumps(_rounded(row[key]))}")
        print(f"  index: {row['index_cpu_s']:.2f} s of CPU for {row['questions']} questions")
    out = Path("build/bench-shared-index.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(rows, indent=1))


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
