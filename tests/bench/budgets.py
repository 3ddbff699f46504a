"""Budgets of tenants over four routers and a real Redis, at twice what they may.

    python -m tests.bench.budgets [--routers 4] [--per-minute 600] [--deadline-ms 1000]

Minute by minute three tenants offer 200 % of a bound: requests, tokens, requests at once. First
minute: nothing goes wrong. Second: Redis loses all its keys half way. Third: it is killed half way
and comes back empty. Goals: a whole minute lets in the bound to 1 %; after a loss never more than
the bound, and the next minute is whole again. The deadline of Redis is longer than by default: on a
machine that is busy with other work routers would else decide without it, each by its share.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.support.faults import ANSWER, CHAT, WHOLE_STREAM, FaultyEngine
from tests.support.processes import Program, start, until
from tests.support.proxy import Connection
from tests.support.raw_http import json_reply
from tests.support.redis_server import RedisServer, redis_server
from tests.support.spread import is_ready
from tests.support.tenants import as_tenant, key_file

MINUTE_S = 60
TOKENS_EACH = 12
"""What `ANSWER` says that it took; bodies make the router guess something else at first."""
AT_ONCE, HOLD_S = 6, 0.5
OFFERED_S = 57.0
"""Of each minute; the rest is for what is still under way."""
EXACT = 0.01


@dataclass(slots=True)
class Engine:
    """Answers at once, streams after half a second; knows how many streams there were at once."""

    at_once: int = 0
    most_at_once: int = 0

    async def play(self, connection: Connection, is_stream: bool) -> None:
        if not is_stream:
            await connection.send(json_reply(ANSWER))
            return
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(HOLD_S)
            await connection.send(WHOLE_STREAM)
        finally:
            self.at_once -= 1


@dataclass(slots=True)
class Minute:
    """Statuses by tenant, and the most streams that ran at once."""

    name: str
    counts: dict[str, Counter[int]] = field(default_factory=dict)
    most_at_once: int = 0


@dataclass(slots=True)
class Bed:
    server: RedisServer
    engine: Engine
    routers: Sequence[Program]
    session: aiohttp.ClientSession
    per_minute: int
    turn: int = 0

    async def ask(self, tenant: str, minute: Minute, *, is_stream: bool = False) -> None:
        self.turn += 1
        url = self.routers[self.turn % len(self.routers)].url + CHAT
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
        body["stream"] = is_stream
        async with self.session.post(url, json=body, headers=as_tenant(tenant)) as reply:
            await reply.read()
        minute.counts.setdefault(tenant, Counter())[reply.status] += 1

    async def offer(self, tenant: str, minute: Minute) -> None:
        """Twice the bound, evenly."""
        count = 2 * self.per_minute
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                due_s = began + OFFERED_S * number / count - time.monotonic()
                await asyncio.sleep(max(0.0, due_s))
                group.create_task(self.ask(tenant, minute))

    async def crowd(self, minute: Minute) -> None:
        """Twice as many clients as may run at once; who is refused tries again soon."""
        ends = time.monotonic() + OFFERED_S - HOLD_S

        async def client() -> None:
            while time.monotonic() < ends:
                began = time.monotonic()
                await self.ask("crowd", minute, is_stream=True)
                if time.monotonic() - began < HOLD_S / 2:
                    await asyncio.sleep(HOLD_S / 2)

        await asyncio.gather(*(client() for _ in range(2 * AT_ONCE)))

    async def minute(self, name: str, half_way: Callable[[], Awaitable[None]] | None) -> Minute:
        """From its beginning by the clock, which is Redis' too."""
        await asyncio.sleep(MINUTE_S - time.time() % MINUTE_S + 0.2)
        found = Minute(name)
        self.engine.most_at_once = 0
        async with asyncio.TaskGroup() as group:
            group.create_task(self.offer("requests", found))
            group.create_task(self.offer("tokens", found))
            group.create_task(self.crowd(found))
            if half_way is not None:
                await asyncio.sleep(OFFERED_S / 2)
                await half_way()
        found.most_at_once = self.engine.most_at_once
        return found


def judge(bed: Bed, minute: Minute, *, is_whole: bool) -> bool:
    """A line per tenant, each with its verdict."""
    bound, is_met = bed.per_minute, True
    for tenant, unit in (("requests", 1), ("tokens", TOKENS_EACH)):
        counts = minute.counts[tenant]
        let_in, other = counts[200], sum(counts.values()) - counts[200] - counts[429]
        off = let_in / bound - 1
        fits = abs(off) <= EXACT if is_whole else off <= EXACT
        is_met &= fits and not other
        tell(
            f"{minute.name}: {tenant}: offered {sum(counts.values()) * unit}, may "
            f"{bound * unit}, let in {let_in * unit} ({100 * off:+.2f} %), other errors {other}: "
            f"{'met' if fits and not other else 'MISSED'}"
        )
    counts, most = minute.counts["crowd"], minute.most_at_once
    fits = most == AT_ONCE if is_whole else most <= AT_ONCE
    is_met &= fits
    tell(
        f"{minute.name}: at once: offered {2 * AT_ONCE}, may {AT_ONCE}, most {most} "
        f"({counts[200]} answered, {counts[429]} refused): {'met' if fits else 'MISSED'}"
    )
    return is_met


async def measure(args: argparse.Namespace) -> bool:
    engine = Engine()
    faulty = FaultyEngine(engine.play)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = await stack.enter_async_context(redis_server())
        await faulty.listen()
        stack.push_async_callback(faulty.stop)
        keys = key_file(
            folder / "keys.yaml",
            requests={"requests_per_minute": args.per_minute},
            tokens={"tokens_per_minute": TOKENS_EACH * args.per_minute},
            crowd={"concurrent_requests": AT_ONCE},
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        routers = []
        for _ in range(args.routers):
            more = ("--set", f"shared.deadline_ms={args.deadline_ms}")
            router = await start_router(faulty, keys, server, *more)
            stack.push_async_callback(router.kill)
            routers.append(router)
        await until(lambda: all_ready(session, routers), within_s=30)
        bed = Bed(server, engine, routers, session, args.per_minute)

        async def wipe() -> None:
            assert await server.command("FLUSHALL") == "+OK"

        async def restart() -> None:
            await server.kill()
            await asyncio.sleep(3)
            await server.start()

        plan = [("whole", None), ("wiped", wipe), ("whole after", None), ("killed", restart)]
        is_met = True
        for name, half_way in [*plan, ("whole after", None)]:
            minute = await bed.minute(name, half_way)
            is_met &= judge(bed, minute, is_whole=half_way is None)
        return is_met


async def all_ready(session: aiohttp.ClientSession, routers: Sequence[Program]) -> bool:
    return all([await is_ready(session, router.url) for router in routers])


async def start_router(
    engine: FaultyEngine, keys: Path, server: RedisServer, *more: str
) -> Program:
    settings = (
        f"tenants.keys_file={keys}",
        f"shared.url={server.url}",
        "tokens.remote=false",
        "log.level=error",
        "health.timeout_s=10",
    )
    flags = [flag for one in settings for flag in ("--set", one)]
    replica = f"id=r1,url={engine.url}"
    return await start("router.cli", "serve", "--port", "0", "--replica", replica, *flags, *more)


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """0 if all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routers", type=int, default=4)
    parser.add_argument("--per-minute", type=int, default=600)
    parser.add_argument("--deadline-ms", type=float, default=1000.0)
    return 0 if asyncio.run(measure(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
