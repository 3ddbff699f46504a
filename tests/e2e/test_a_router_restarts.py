"""A router that takes over under load: ready in time, and as warm as its sibling was."""

import asyncio
from random import Random
from typing import Any

import aiohttp

from tests.support.processes import Fleet, fleet, start_router, until

FLAGS = ("--profile", "laptop", "--speed-up", "20", "--buffer-steps", "50")
SESSIONS = 24
BACK_WITHIN_S = 10.0


def prompt(session: int, turn: int) -> list[int]:
    """A conversation: each turn begins with the one before."""
    rng = Random(session)
    return [rng.randrange(1000, 40_000) for _ in range(160 + 48 * turn)]


async def hit_share(run: Fleet, url: str, turns: range, seconds: float) -> float:
    """Of the prompt tokens of a few clients' conversations, the share that engines reused."""
    loop = asyncio.get_running_loop()
    end, rng = loop.time() + seconds, Random(turns.start)
    hits = total = 0

    async def client(number: int) -> None:
        nonlocal hits, total
        while loop.time() < end:
            session, turn = rng.randrange(SESSIONS), rng.choice(turns)
            body: dict[str, Any] = {"model": run.model, "max_tokens": 1}
            body["prompt"] = prompt(session, turn)
            async with run.session.post(url + "/v1/completions", json=body) as reply:
                usage = (await reply.json())["usage"]
            hits += usage["prompt_tokens_details"]["cached_tokens"]
            total += usage["prompt_tokens"]

    await asyncio.gather(*(client(number) for number in range(4)))
    return hits / total


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(url + "/readyz") as response:
        return response.status == 200


async def test_a_router_with_a_sibling_is_as_warm_as_it_within_ten_seconds():
    async with fleet(3, engine_flags=FLAGS) as run:
        for session in range(SESSIONS):
            body = {"model": run.model, "max_tokens": 1, "prompt": prompt(session, 4)}
            async with run.session.post(run.router.url + "/v1/completions", json=body) as reply:
                await reply.read()
        before = await hit_share(run, run.router.url, range(4), 3.0)
        load = asyncio.create_task(hit_share(run, run.router.url, range(4), 6.0))
        flags = ("--set", f"index.siblings=[{run.router.url}]")
        second = await start_router(run.engines, *flags)
        try:
            await until(lambda: is_ready(run.session, second.url), within_s=BACK_WITHIN_S)
            after = await hit_share(run, second.url, range(4), 3.0)
            await load
        finally:
            await second.kill()
        assert before > 0.5
        assert after >= 0.95 * before
