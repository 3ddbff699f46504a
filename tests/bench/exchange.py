"""How far behind the truth a router is about the others: real routers, a real Redis, real load.

    python -m tests.bench.exchange [--routers 2 4] [--seconds 15]
    python -m tests.bench.exchange --work   # CPU that a piece of news takes who tells and who hears

The load of `tests.bench.routers`. A change (a request is sent, has its first token, is over) is
told when a report that was made after it has been read by another router; how long that takes is
what the simulator calls `--share-load-ms`.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from loadgen.quantiles import percentile
from router.index.load import Load
from router.shared import RedisStore, connect
from router.shared.report import encode_news
from tests.bench.routers import ENGINES, PROFILE, QUIETLY, play
from tests.support import spread
from tests.support.processes import Program, start
from tests.support.redis_server import redis_server

SHARES = (0.1, 0.5, 0.9, 0.99)


async def start_told(*arguments: str, log: Path | None = None) -> Program:
    """A router that writes down what it tells and hears, instead of one that doesn't."""
    watched = "tests.bench.told_router" if arguments[0] == "router.cli" else arguments[0]
    return await start(watched, *arguments[1:], log=log)


async def measure(routers: int, seconds: float, folder: Path) -> tuple[list[float], float]:
    """Delays in ms, and how many cores were kept busy."""
    os.environ["WARMGATE_TOLD"] = str(folder)
    spread.start = start_told  # type: ignore[attr-defined]
    async with redis_server() as server:
        flags = (*QUIETLY, "--set", f"shared.url={server.url}")
        made = spread.bench(ENGINES, routers, engine_flags=PROFILE, router_flags=flags)
        async with made as built:
            outcome = await play(built, 1, seconds)
    return delays_ms(await asyncio.to_thread(read, folder)), outcome.cores


async def work_us(pieces: int, news: bytes, *, is_heard: bool) -> float:
    """CPU in this process for each piece of news that it tells, and hears."""
    heard, done, ready = 0, asyncio.Event(), asyncio.Event()

    def hear(data: bytes) -> None:
        nonlocal heard
        heard += 1
        if heard == pieces:
            done.set()

    async with redis_server() as server:
        stores = [RedisStore(connect(server.url, 1.0), "bench", 1.0) for _ in range(2)]
        listening = asyncio.create_task(stores[1].listen(hear, ready.set))
        try:
            await ready.wait()
            if not is_heard:
                listening.cancel()
                await asyncio.wait([listening])
            began = time.process_time()
            for _ in range(pieces):
                await stores[0].publish(news)
            if is_heard:
                await done.wait()
            return 1e6 * (time.process_time() - began) / pieces
        finally:
            listening.cancel()
            await asyncio.wait([listening])
            for store in stores:
                await store.aclose()


def tell_work() -> None:
    pieces, news = 3000, encode_news("0123456789abcdef", 1, {"r1": Load(), "r2": Load()})
    told, both = (asyncio.run(work_us(pieces, news, is_heard=heard)) for heard in (False, True))
    sys.stdout.write(
        f"a piece of news of two replicas ({len(news)} B) takes {told:.0f} us of CPU to tell and "
        f"{both - told:.0f} us to hear\n"
    )


def read(folder: Path) -> list[list[list[object]]]:
    """What each router wrote down."""
    return [[json.loads(line) for line in path.open()] for path in sorted(folder.iterdir())]


def delays_ms(found: Sequence[Sequence[Sequence[object]]]) -> list[float]:
    """Of each change at each other router, from what each router wrote down."""
    made: dict[str, list[tuple[float, int]]] = {}
    changes: dict[str, list[float]] = {}
    heard: list[dict[str, list[tuple[int, float]]]] = []
    for router in found:
        names = {str(row[1]) for row in router if row[0] == "told"}
        for name in names:
            told = [row for row in router if row[0] == "told"]
            made[name] = [(float(str(row[3])), int(str(row[2]))) for row in told]
            changes[name] = [float(str(row[1])) for row in router if row[0] == "changed"]
        hears: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for row in router:
            if row[0] == "heard":
                hears[str(row[1])].append((int(str(row[2])), float(str(row[3]))))
        heard.append(hears)
    delays = []
    for name, times in changes.items():
        for hears in heard:
            for at in times:
                report = bisect_left(made[name], (at, -1))
                if name not in hears or report == len(made[name]):
                    continue
                first = bisect_left(hears[name], (made[name][report][1], -1.0))
                if first < len(hears[name]):
                    delays.append(1e3 * (hears[name][first][1] - at))
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--work", action="store_true", help="CPU of news instead")
    args = parser.parse_args()
    if args.work:
        tell_work()
        return
    for routers in args.routers:
        with tempfile.TemporaryDirectory() as folder:
            delays, cores = asyncio.run(measure(routers, args.seconds, Path(folder)))
        found = sorted(delays)
        shares = ", ".join(f"p{100 * s:g} {percentile(found, s):.1f}" for s in SHARES)
        mean = sum(found) / len(found)
        sys.stdout.write(
            f"{routers} routers, {cores:.2f} cores busy: a change is known to another after "
            f"{shares}, mean {mean:.1f} ms ({len(found)} of them)\n"
        )


if __name__ == "__main__":
    main()
