"""A router is killed under load and another takes its place: `python -m tests.bench.restarts`.

Three engines that replay few events, some clients' conversations, one router. It is killed, and a
new one starts in its place, once beside a sibling that it may ask, once alone. Printed: how long it
took to be ready, each second's hit rate beside the one before the kill, when it was back at 95 % of
that, and what the new router says that it does not know. Ends with 1 when the one with a sibling
is not back within 10 s.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp

from tests.support.processes import Fleet, Program, fleet, start_router, until

RESULT: Final = Path("build/bench-restarts.json")
FLAGS: Final = ("--profile", "laptop", "--speed-up", "20", "--buffer-steps", "50")
ENGINES: Final = 3
CLIENTS: Final = 6
SESSIONS: Final = 48
TURNS: Final = 5
BEFORE_S: Final = 5.0
AFTER_S: Final = 11.0
BACK_WITHIN_S: Final = 10.0
BACK_SHARE: Final = 0.95
RETRY_S: Final = 0.05


@dataclass(slots=True)
class Report:
    """One restart. Hit rates are shares of prompt tokens."""

    hit_rate_before: float = 0.0
    ready_after_s: float = 0.0
    back_after_s: float | None = None
    """From the kill to the end of the first second with enough hits."""
    hit_rate_by_second: list[float | None] = field(default_factory=list)
    """From the kill on; None: no request was answered."""
    failed_requests: int = 0
    blocks_before: int = 0
    blocks_when_ready: int = 0
    unknown: dict[str, str] = field(default_factory=dict)
    """What the new router said when it was ready, by replica that it did not know exactly."""


def prompt(session: int, turn: int) -> list[int]:
    """A conversation: each turn begins with the one before."""
    rng = Random(session)
    return [rng.randrange(1000, 40_000) for _ in range(160 + 48 * turn)]


@dataclass(slots=True)
class Load:
    """Clients that go on whatever happens to the router at `url`."""

    session: aiohttp.ClientSession
    model: str
    url: str
    answers: list[tuple[float, int, int]] = field(default_factory=list)
    """When, tokens reused, tokens of the prompt."""
    failed: int = 0

    async def run(self, number: int) -> None:
        rng = Random(number)
        while True:
            asked = prompt(rng.randrange(SESSIONS), rng.randrange(TURNS))
            try:
                await self.ask(asked)
            except (aiohttp.ClientError, OSError):
                self.failed += 1
                await asyncio.sleep(RETRY_S)

    async def ask(self, asked: list[int]) -> None:
        body: dict[str, Any] = {"model": self.model, "max_tokens": 1, "prompt": asked}
        async with self.session.post(self.url + "/v1/completions", json=body) as reply:
            reply.raise_for_status()
            usage = (await reply.json())["usage"]
        hit = usage["prompt_tokens_details"]["cached_tokens"]
        now = asyncio.get_running_loop().time()
        self.answers.append((now, hit, usage["prompt_tokens"]))

    def hit_rate(self, start: float, end: float) -> float | None:
        within = [each for each in self.answers if start <= each[0] < end]
        total = sum(tokens for _, _, tokens in within)
        return sum(hit for _, hit, _ in within) / total if total else None


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(url + "/readyz") as response:
        return response.status == 200


async def replicas(session: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    async with session.get(url + "/debug/replicas") as response:
        rows: list[dict[str, Any]] = (await response.json())["replicas"]
        return rows


async def restart(run: Fleet, sibling: Program | None) -> Report:
    """Kill the fleet's router under load; another one takes its place."""
    loop, report = asyncio.get_running_loop(), Report()
    load = Load(run.session, run.model, run.router.url)
    for session in range(SESSIONS):
        await load.ask(prompt(session, TURNS - 1))
    began = loop.time()
    clients = [asyncio.create_task(load.run(number)) for number in range(CLIENTS)]
    fresh: Program | None = None
    try:
        await asyncio.sleep(BEFORE_S)
        killed = loop.time()
        report.hit_rate_before = load.hit_rate(began, killed) or 0.0
        known = await replicas(run.session, run.router.url)
        report.blocks_before = sum(row["index_blocks"] for row in known)
        killed = loop.time()
        await run.router.kill()
        flags = ("--set", f"index.siblings=[{sibling.url}]") if sibling else ()
        fresh = await start_router(run.engines, *flags)
        url = fresh.url
        await until(lambda: is_ready(run.session, url), within_s=60.0)
        report.ready_after_s = loop.time() - killed
        known = await replicas(run.session, url)
        report.blocks_when_ready = sum(row["index_blocks"] for row in known)
        report.unknown = {
            row["id"]: f"{row['trust']}: {row['trust_reason']}"
            for row in known
            if row["trust"] != "exact"
        }
        load.url = url
        await asyncio.sleep(max(0.0, killed + AFTER_S - loop.time()))
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        if fresh is not None:
            await fresh.kill()
    report.failed_requests = load.failed
    for second in range(int(AFTER_S)):
        share = load.hit_rate(killed + second, killed + second + 1)
        report.hit_rate_by_second.append(share)
        is_back = share is not None and share >= BACK_SHARE * report.hit_rate_before
        if is_back and report.back_after_s is None:
            report.back_after_s = second + 1.0
    return report


async def measure() -> dict[str, Report]:
    reports = {}
    for name in ("beside a sibling", "alone"):
        async with fleet(ENGINES, engine_flags=FLAGS) as run:
            sibling = None
            try:
                if name != "alone":
                    flags = ("--set", f"index.siblings=[{run.router.url}]")
                    sibling = await start_router(run.engines, *flags)
                    url = sibling.url
                    await until(lambda url=url: is_ready(run.session, url), within_s=60.0)  # type: ignore[misc]
                reports[name] = await restart(run, sibling)
            finally:
                if sibling is not None:
                    await sibling.kill()
    return reports


def main() -> int:
    reports = asyncio.run(measure())
    for name, report in reports.items():
        shares = [
            "-" if each is None else f"{each / report.hit_rate_before:.2f}"
            for each in report.hit_rate_by_second
        ]
        back = report.back_after_s
        print(
            f"{name}: hit rate before {report.hit_rate_before:.3f}; ready after "
            f"{report.ready_after_s:.1f} s; back at {BACK_SHARE:.0%} of it "
            f"{f'within {back:.0f} s' if back else f'not within {AFTER_S:.0f} s'}\n"
            f"  each second's, as a share of before: {' '.join(shares)}\n"
            f"  blocks known: {report.blocks_before} before, {report.blocks_when_ready} when "
            f"ready; failed requests: {report.failed_requests}"
        )
        for replica_id, what in report.unknown.items():
            print(f"  {replica_id} {what}")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({name: asdict(each) for name, each in reports.items()}, indent=1))
    back = reports["beside a sibling"].back_after_s
    return 0 if back is not None and back <= BACK_WITHIN_S else 1


if __name__ == "__main__":
    sys.exit(main())
