"""Several routers against one: agents' sessions over four embedded engines, requests in turn.

    python -m tests.bench.routers live [--routers 1 2 4] [--seeds 3] [--seconds 25]
    python -m tests.bench.routers redis     # the same with a Redis that is killed half way
    python -m tests.bench.routers simulated # 1 to 16 routers over 64 replicas, in virtual time
    ... --again     # one router twice, the second as if it were more: what chance does

Below each run stands where its hits were lost (`tests.bench.lost_hits`), before, while and after
Redis is away, or would be.

Goals: hit rate within 2 points and P95 of TTFT within 10 % of one router's; no request fails.
All routers get the same sessions at the same times; of several seeds the answers are pooled.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import psutil

from loadgen.arrival import Arrivals
from loadgen.calibrate import single_token_words
from loadgen.client import Client
from loadgen.quantiles import percentile
from loadgen.record import Record
from loadgen.runner import Runner, RunOptions
from loadgen.simulate import patterns
from loadgen.simulate.fleet import Fleet
from loadgen.simulate.gateway import policy_maker
from loadgen.simulate.simulation import Simulation
from loadgen.text import Prose
from loadgen.workload.agent import Agent, AgentOptions
from tests.bench.lost_hits import lines_of, records_of
from tests.support.processes import MODEL_DIR, until
from tests.support.redis_server import RedisServer, redis_server
from tests.support.spread import Bench, bench, hit_rate, ttfts_ms
from workers.engine.profile import load_profile

ENGINES = 4
PROFILE = tuple(
    "--profile 2xh100-32b-bf16 --speed-up 0.4 --num-blocks 6144 --log-level error".split()
)
"""Slow engines: what routers do to TTFT is then large beside what a busy machine does to it."""
QUIETLY = ("--set", "log.level=error")
PER_SECOND = 8.0
MOST_HIT_POINTS, MOST_P95 = 2.0, 0.10
GONE_AT, BACK_AT = 0.35, 0.65


@dataclass(frozen=True, slots=True)
class Outcome:
    """`planned` less `records` that are ok have failed. `cores`: that load, routers, engines and
    Redis kept busy together.
    """

    records: Sequence[Record]
    planned: int
    cores: float
    lost: Sequence[str] = ()

    @property
    def failed(self) -> int:
        return self.planned - sum(record.is_ok for record in self.records)


def agents(seed: int, seconds: float) -> Agent:
    """Eight turns and two sub-agents of three each; instructions that all share, tools' results."""
    options = AgentOptions(
        requests=round(PER_SECOND * seconds),
        arrivals=Arrivals(rate_per_s=PER_SECOND),
        groups=6,
        tools_tokens=1200,
        context_tokens=800,
        result_tokens=300,
        output_tokens=16,
        think_s=1.0,
    )
    return Agent(options, Prose(seed, 1.0, single_token_words(MODEL_DIR)))


async def play(made: Bench, seed: int, seconds: float) -> Outcome:
    """One run from empty caches."""
    runner = Runner(cast(Client, made.spread), RunOptions(), time.perf_counter)
    before, since = cpu_s(), time.perf_counter()
    result = await runner.run(agents(seed, seconds))
    return Outcome(
        result.records, result.planned, (cpu_s() - before) / (time.perf_counter() - since)
    )


def cpu_s() -> float:
    """Of this process and all that it has started and not ended."""
    me = psutil.Process()
    times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


async def one_run(args: argparse.Namespace, routers: int, seed: int) -> Outcome:
    async with built(args, routers) as (_, made):
        return lost_of(made, await play(made, seed, args.seconds), args.seconds)


async def without_redis(
    args: argparse.Namespace, routers: int, seed: int
) -> tuple[Outcome, set[str]]:
    """The same, and the states that routers went through while Redis was killed and came back."""
    async with built(args, routers) as (server, made):
        playing = asyncio.create_task(play(made, seed, args.seconds))
        try:
            seen = await fail(server, made, args.seconds)
            return lost_of(made, await playing, args.seconds), seen
        finally:
            playing.cancel()


@asynccontextmanager
async def built(args: argparse.Namespace, routers: int) -> AsyncIterator[tuple[RedisServer, Bench]]:
    """Routers that share a Redis, and write down each request."""
    with tempfile.TemporaryDirectory() as logs:
        async with redis_server() as server:
            settings = ("log.access=true", f"shared.url={server.url}", *args.set)
            flags = (*QUIETLY, *(part for one in settings for part in ("--set", one)))
            made = bench(
                *(ENGINES, routers), engine_flags=PROFILE, router_flags=flags, logs=Path(logs)
            )
            async with made as found:
                yield server, found


def lost_of(made: Bench, outcome: Outcome, seconds: float) -> Outcome:
    """With where hits were lost."""
    assert made.logs is not None
    gone_s, back_s = GONE_AT * seconds, BACK_AT * seconds
    phases = ("before", 0.0, gone_s), ("while", gone_s, back_s), ("after", back_s, 1e9)
    return replace(outcome, lost=[*lines_of(records_of(made.logs), phases)])


async def fail(server: RedisServer, made: Bench, seconds: float) -> set[str]:
    """Kill Redis in the middle, start it again, empty. TimeoutError if that is not seen."""
    seen = {*await made.states()}

    async def all_are(state: str) -> bool:
        found = await made.states()
        seen.update(found)
        return set(found) == {state}

    await asyncio.sleep(GONE_AT * seconds)
    await server.kill()
    await until(lambda: all_are("down"))
    await asyncio.sleep((BACK_AT - GONE_AT) * seconds)
    await server.start()
    await until(lambda: all_are("ok"))
    return seen


def compare(outcomes: dict[str, list[Outcome]]) -> bool:
    """A table, and a verdict per goal."""
    is_met, base = True, (0.0, 0.0)
    for name, runs in outcomes.items():
        for number, run in enumerate(runs):
            found = [record for record in run.records if record.is_ok]
            p95 = percentile(sorted(ttfts_ms(found)), 0.95)
            tell(f"{name}, run {number}: hit {100 * hit_rate(found):.2f} %, P95 {p95:.1f} ms")
            for line in run.lost:
                tell(line)
    tell("routers        requests failed  hit %   P50 ms   P95 ms  mean ms  cores busy")
    for number, (name, runs) in enumerate(outcomes.items()):
        records = [record for run in runs for record in run.records if record.is_ok]
        times = sorted(ttfts_ms(records))
        hit, p95 = 100 * hit_rate(records), percentile(times, 0.95)
        failed = sum(run.failed for run in runs)
        busy = statistics.fmean(run.cores for run in runs)
        row = f"{name:14} {len(records):8} {failed:6} {hit:6.2f} {percentile(times, 0.5):8.1f}"
        tell(f"{row} {p95:8.1f} {statistics.fmean(times):8.1f} {busy:11.2f}")
        if not number:
            base = hit, p95
        is_met &= verdict(name, failed, hit - base[0], p95 / base[1] - 1)
    return is_met


def verdict(name: str, failed: int, points: float, p95: float) -> bool:
    goals = {
        f"failed {failed} (0)": failed == 0,
        f"hit rate {points:+.2f} points (at most {MOST_HIT_POINTS:g} lower)": (
            points >= -MOST_HIT_POINTS
        ),
        f"P95 {100 * p95:+.1f} % (at most {100 * MOST_P95:g} more)": p95 <= MOST_P95,
    }
    words = (f"{text}: {'met' if is_met else 'MISSED'}" for text, is_met in goals.items())
    tell(f"  {name}: {'; '.join(words)}")
    return all(goals.values())


def live(args: argparse.Namespace) -> bool:
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    outcomes: dict[str, list[Outcome]] = {}
    for seed in seeds:  # all numbers of routers beside each other: the machine changes with time
        for routers in args.routers:
            outcome = asyncio.run(one_run(args, routers, seed))
            outcomes.setdefault(str(routers), []).append(outcome)
        again(args, outcomes, seed)
    return compare(outcomes)


def again(args: argparse.Namespace, outcomes: dict[str, list[Outcome]], seed: int) -> None:
    if args.again:
        outcomes.setdefault("1, again", []).append(asyncio.run(one_run(args, 1, seed)))


def redis(args: argparse.Namespace) -> bool:
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    outcomes: dict[str, list[Outcome]] = {}
    for seed in seeds:
        outcomes.setdefault("1", []).append(asyncio.run(one_run(args, 1, seed)))
        again(args, outcomes, seed)
        for routers in [number for number in args.routers if number > 1]:
            outcome, seen = asyncio.run(without_redis(args, routers, seed))
            outcomes.setdefault(f"{routers}, killed", []).append(outcome)
            tell(f"{routers} routers, seed {seed}: states seen {', '.join(sorted(seen))}; now ok")
    return compare(outcomes)


def simulated(args: argparse.Namespace) -> bool:
    """The simulator's coding agents, sixteen times as many, over sixteen times the replicas."""
    fleet = Fleet(profile=load_profile("h200-8b-fp8"), replicas=64)
    usual = patterns.Agents()
    shape = replace(
        usual,
        sessions=args.sessions,
        session_rate_per_s=16 * usual.session_rate_per_s,
        repositories=16 * usual.repositories,
    )
    is_met, base = True, (0.0, 0.0)
    tell("routers  hit %  bound %   P50 ms   P95 ms  mean ms")
    for routers in args.sim_routers:
        runs = []
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            told = replace(fleet, routers=routers, load_sharing_s=args.told_ms / 1e3)
            traffic = patterns.agents(seed, shape)
            simulation = Simulation(told, traffic, policy_maker("cache-aware"), seed)
            runs.append(simulation.run())
        times = sorted(one.ttft_ms for run in runs for one in run.served)
        hit, bound = (
            100 * statistics.fmean(getattr(run.total, name) for run in runs)
            for name in ("hit_rate", "pooled_bound")
        )
        p95, row = percentile(times, 0.95), f"{routers:7} {hit:6.2f} {bound:8.2f}"
        tell(f"{row} {percentile(times, 0.5):8.1f} {p95:8.1f} {statistics.fmean(times):8.1f}")
        base = base if base[1] else (hit, p95)
        is_met &= verdict(str(routers), 0, hit - base[0], p95 / base[1] - 1)
    return is_met


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """0 if all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("live", "redis", "simulated"))
    parser.add_argument("--routers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sim-routers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--sessions", type=int, default=400, help="of the simulated agents")
    parser.add_argument("--told-ms", type=float, default=2.6, help="see tests.bench.exchange")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each live run")
    parser.add_argument("--again", action="store_true", help="one router twice")
    parser.add_argument("--set", action="append", default=[], help="a setting of the routers")
    args = parser.parse_args()
    return 0 if {"live": live, "redis": redis, "simulated": simulated}[args.what](args) else 1


if __name__ == "__main__":
    sys.exit(main())
