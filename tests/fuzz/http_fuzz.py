"""Mutated HTTP against the listener of a real router process.

    python -m tests.fuzz.http_fuzz [--cases 200000] [--seed 1] [--first 0] [--only NUMBER]

Every case is one connection. Findings are: a 500 (or a status that no handler gives), a reply that
does not come in time though the client has said that it sends no more, a request that aiohttp's own
parser reads differently, something still in flight, memory that grows, a log line about a bug, a
router that is gone. Cases come in slices of 10,000: behind each the router must be idle, and a
line says how far it is; an interrupt ends in what was found until then. `--first` goes on at that
case, `--only` plays one again.
"""

import argparse
import asyncio
import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import psutil

from tests.fuzz.http_grammar import conversation
from tests.fuzz.reference import judge
from tests.support.faults import Bed, bed, works
from tests.support.processes import until

WAIT_S = 20.0
"""A listener that hangs: its own limit on slow bodies is far below this."""
QUIET_S = 0.3
AT_ONCE = 64
SLICE_CASES = 10_000
MOST_GROWTH_BYTES = 24 * 2**20
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
FINE = {100, 200, 204, 400, 404, 405, 408, 413, 417, 429, 431, 502, 503, 504}
SETTINGS = (
    "listen.body_timeout_s=2",
    "listen.head_timeout_s=2",
    "listen.max_body_bytes=1048576",
    "health.interval_s=2",
)


@dataclass
class Findings:
    """`growth`: of the router's memory, in bytes, since the first quarter of the cases."""

    statuses: Counter[int] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    played: int = 0
    growth: int = 0

    def __str__(self) -> str:
        return (
            f"{self.played:,} cases, {len(self.bad)} findings, "
            f"memory {self.growth / 2**20:+.1f} MiB, replies {dict(sorted(self.statuses.items()))}"
        )


async def listen(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: float
) -> bytes:
    """What comes back: to a client that leaves, that says it is done, or that waits."""
    if chance < 0.05:
        return b""
    if chance < 0.3:
        writer.write_eof()
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    async with asyncio.timeout(WAIT_S):
        raw = await reader.read(1 << 16)
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(QUIET_S):
                more = await reader.read(1 << 16)
            if not more:
                break
            raw += more
    return raw


async def play(run: Bed, seed: int, number: int, found: Findings) -> None:
    rng = Random(f"{seed}/{number}")
    await talk(run, conversation(rng), rng.random(), f"case {number}", found)


async def talk(run: Bed, pieces: list[bytes], chance: float, name: str, found: Findings) -> None:
    """One connection that sends these pieces; `chance`: see `listen`."""
    host, port = run.router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = b""
    try:
        with contextlib.suppress(OSError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            raw = await listen(reader, writer, chance)
    except TimeoutError:
        found.bad.append(f"{name}: hangs")
    finally:
        writer.close()
    if (difference := judge(b"".join(pieces)).disagreement(raw)) is not None:
        found.bad.append(f"{name}: {difference}")
    for status in map(int, _STATUS.findall(raw)):
        found.statuses[status] += 1
        if status not in FINE:
            found.bad.append(f"{name}: status {status}")


async def fuzz(
    cases: int,
    seed: int,
    first: int = 0,
    found: Findings | None = None,
    tell: Callable[[Findings], None] = lambda found: None,
) -> Findings:
    """Play them against one router. `found`: filled as it goes; `tell`: called behind a slice."""
    found = Findings() if found is None else found
    step, end, known_bytes = min(SLICE_CASES, max(1, cases // 4)), first + cases, 0
    async with bed(works, works, settings=SETTINGS) as run:
        router = psutil.Process(run.router.process.pid)
        for start in range(first, end, step):
            await play_all(run, seed, range(start, min(start + step, end)), found)
            await until(run.is_idle)
            await look(run, router, found)
            if start - first < max(cases // 4, step):
                known_bytes = router.memory_info().rss
            found.growth = router.memory_info().rss - known_bytes
            if found.growth > MOST_GROWTH_BYTES:
                found.bad.append(f"memory grew by {found.growth / 2**20:.1f} MiB")
            tell(found)
    return found


async def play_all(run: Bed, seed: int, numbers: Iterable[int], found: Findings) -> None:
    """These cases, some of them at once."""
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await play(run, seed, number, found)
            found.played += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def look(run: Bed, router: psutil.Process, found: Findings) -> None:
    """What can be seen of the router from outside, now that nothing is in flight."""
    if await run.metric("warmgate_requests_total", outcome="internal_error"):
        found.bad.append("a request ended in an internal error")
    if (await run.ask(is_stream=True)).error is not None:
        found.bad.append("does not serve any more")
    if router.num_fds() > 64:
        found.bad.append(f"{router.num_fds()} descriptors are open")


async def again(seed: int, number: int) -> Findings:
    found = Findings()
    async with bed(works, works, settings=SETTINGS) as run:
        sys.stdout.write(f"{conversation(Random(f'{seed}/{number}'))!r}\n")
        await play(run, seed, number, found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    found, began, seed = Findings(), time.monotonic(), arguments.seed

    def tell(found: Findings) -> None:
        minutes = (time.monotonic() - began) / 60
        sys.stdout.write(f"{minutes:.1f} min, seed {seed}: {found}\n")
        sys.stdout.flush()

    try:
        if arguments.only is not None:
            found = asyncio.run(again(seed, arguments.only))
        else:
            asyncio.run(fuzz(arguments.cases, seed, arguments.first, found, tell))
    except KeyboardInterrupt:
        sys.stdout.write("interrupted\n")
        return 130
    finally:
        tell(found)
        for each in found.bad[:50]:
            sys.stdout.write(f"FOUND {each}\n")
    return 1 if found.bad else 0


if __name__ == "__main__":
    sys.exit(main())
