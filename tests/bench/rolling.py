"""Routers that are restarted under load: is a new one as warm as its siblings, does a request fail?

    python -m tests.bench.rolling [--routers 3] [--seconds 75] [--seed 1]

Agents' sessions over four embedded engines; a balancer gives requests in turn to the routers that
say they are ready. One after the other each router gets SIGTERM, drains and ends, and another
takes its place, which copies the index of a sibling. Goals: in its first ten seconds a new router's
hit rate is within 5 points of its siblings' in the same seconds; no request fails.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from loadgen.client import Client
from loadgen.record import Record
from loadgen.runner import LEAD_S, Runner, RunOptions, RunResult
from tests.bench.routers import ENGINES, PROFILE, QUIETLY, agents, tell
from tests.support.processes import Program, until
from tests.support.redis_server import redis_server
from tests.support.spread import Bench, bench, hit_rate, is_ready

FIRST_S = 10.0
MOST_POINTS = 5.0
WARM_UP_S, BETWEEN_S = 15.0, 11.0
SETTLE_S = 0.5
"""So long a router that will end says so, and still answers: ten looks of the balancer."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A new router: when it was ready, in seconds from the run's start, and how long that took."""

    url: str
    at_s: float
    starting_s: float


async def replace_one(made: Bench, old: Program, zero: float) -> Taken:
    """SIGTERM one router, start another beside it; it gets requests when it is ready."""
    ending = asyncio.create_task(old.stop())
    siblings = [one.url for one in made.routers if one is not old]
    made.routers.remove(old)
    began = time.perf_counter()
    usual = made.flags
    made.flags = (*usual, "--set", f"index.siblings=[{','.join(siblings)}]")
    fresh = await made.start_router()
    made.flags = usual
    await until(lambda: is_ready(made.spread.session, fresh.url), within_s=30)
    now = time.perf_counter()
    assert await ending == 0, "a router did not end well"
    made.spread.drop(old.url)
    return Taken(fresh.url, now - zero, now - began)


async def roll(made: Bench, seed: int, seconds: float) -> tuple[RunResult, list[Taken]]:
    zero = time.perf_counter() + LEAD_S
    runner = Runner(cast(Client, made.spread), RunOptions(), time.perf_counter)
    watching = asyncio.create_task(made.spread.watch())
    playing = asyncio.create_task(runner.run(agents(seed, seconds), zero=zero))
    taken = []
    try:
        await asyncio.sleep(WARM_UP_S)
        for old in list(made.routers):
            taken.append(await replace_one(made, old, zero))
            await asyncio.sleep(BETWEEN_S)
        return await playing, taken
    finally:
        playing.cancel()
        watching.cancel()


def judge(made: Bench, result: RunResult, taken: Sequence[Taken]) -> bool:
    """A line per router and a verdict per goal."""
    failed = result.planned - sum(record.is_ok for record in result.records)
    worst = 0.0
    for one in taken:
        until_s = one.at_s + FIRST_S
        then = [r for r in result.records if r.is_ok and one.at_s <= r.sent_s < until_s]
        own = [r for r in then if _router(made, r) == one.url]
        others = [r for r in then if _router(made, r) != one.url]
        points = 100 * (hit_rate(own) - hit_rate(others))
        worst = min(worst, points)
        tell(
            f"restarted at {one.at_s:.1f} s, ready after {one.starting_s:.1f} s: hit rate of its "
            f"first {FIRST_S:.0f} s {100 * hit_rate(own):.1f} % ({len(own)} requests), of its "
            f"siblings {100 * hit_rate(others):.1f} % ({len(others)}): {points:+.1f} points"
        )
    kinds = sorted({record.outcome for record in result.records if not record.is_ok})
    tell(f"{len(result.records)} requests, {failed} failed {', '.join(kinds)}".rstrip())
    goals = {
        f"worst {worst:+.1f} points (at most {MOST_POINTS:g} lower)": worst >= -MOST_POINTS,
        f"failed {failed} (0)": failed == 0,
    }
    for text, is_met in goals.items():
        tell(f"  {text}: {'met' if is_met else 'MISSED'}")
    return all(goals.values())


def _router(made: Bench, record: Record) -> str | None:
    return made.spread.answered.get(record.request_id or "")


async def measure(args: argparse.Namespace) -> bool:
    async with redis_server() as server:
        more = (f"shared.url={server.url}", f"listen.settle_s={SETTLE_S}")
        flags = (*QUIETLY, *(flag for one in more for flag in ("--set", one)))
        async with bench(ENGINES, args.routers, engine_flags=PROFILE, router_flags=flags) as made:
            result, taken = await roll(made, args.seed, args.seconds)
            return judge(made, result, taken)


def main() -> int:
    """0 if both goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--seed", type=int, default=1)
    return 0 if asyncio.run(measure(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
