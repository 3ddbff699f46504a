"""Engines whose events say that something is wrong long before the next probe is due."""

import asyncio
import signal
import time

from tests.support.processes import fleet, until
from tests.support.streaming import chat

ENGINE = ("--profile", "laptop", "--speed-up", "1")
LAZY = ("--set", "health.interval_s=60")
"""Probes so far apart that whatever is found in time was found by its events."""
PROMPT = [{"role": "user", "content": " ".join(f"word{n}" for n in range(200))}]


async def ask(run, max_tokens):
    return await chat(
        run.session, run.router.url, run.model, PROMPT, max_tokens=max_tokens, ignore_eos=True
    )


async def spoken(run):
    """Every engine has published something, so its silence can mean something."""
    return all(row["index_blocks"] for row in (await run.replicas()).values())


async def is_out(run, name):
    return not (await run.replicas())[name]["is_healthy"]


async def test_an_idle_engine_that_is_killed_is_out_in_under_three_seconds():
    async with fleet(1, router_flags=LAZY, engine_flags=ENGINE) as run:
        await ask(run, 1)
        await until(lambda: spoken(run))
        killed_at = time.monotonic()
        await run.engines[0].kill()
        await until(lambda: is_out(run, "r1"))
        assert time.monotonic() - killed_at < 3.0


async def test_an_engine_that_hangs_with_requests_is_out_long_before_its_next_probe():
    async with fleet(1, router_flags=LAZY, engine_flags=ENGINE) as run:
        await ask(run, 1)
        await until(lambda: spoken(run))
        asking = asyncio.create_task(ask(run, 400))

        async def decodes():
            return (await run.replicas())["r1"]["load"]["running"] == 1

        await until(decodes)
        run.engines[0].process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        await until(lambda: is_out(run, "r1"))
        # silence 0.5 s, then one probe of 2 s
        assert time.monotonic() - stopped_at < 5.0
        run.engines[0].process.send_signal(signal.SIGCONT)
        await until(lambda: is_back(run))
        assert (await asking).is_done


async def is_back(run):
    return not await is_out(run, "r1")
