"""What the router predicts is what the engine reuses: real events, real tokens, real processes."""

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

from tests.support.processes import Fleet, fleet, until
from tests.support.streaming import Streamed, chat

WORDS = "harbour valley feather window market ladder bridge candle mirror river".split()


def talk(rng: Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def events_have_settled(run: Fleet) -> None:
    """Wait until the index has every frame that the engines have published."""

    async def is_quiet() -> bool:
        before = [row["event_counters"]["frames"] for row in (await run.replicas()).values()]
        await asyncio.sleep(0.05)
        after = [row["event_counters"]["frames"] for row in (await run.replicas()).values()]
        return before == after

    await until(is_quiet)


async def converse(
    run: Fleet, seed: int, turns: int, words: int = 120, **fields: Any
) -> list[Streamed]:
    rng = Random(seed)
    messages = [{"role": "system", "content": f"{seed} {talk(rng, words)}"}]
    replies = []
    for _ in range(turns):
        messages.append({"role": "user", "content": talk(rng, 30)})
        reply = await chat(run.session, run.router.url, run.model, messages, **fields)
        messages.append({"role": "assistant", "content": reply.text})
        replies.append(reply)
        await events_have_settled(run)
    return replies


async def test_every_prediction_over_turns_and_salts_equals_the_engines_report():
    flags = ("--profile", "laptop", "--speed-up", "20")
    async with fleet(2, engine_flags=flags) as run:
        replies = []
        for seed in range(6):
            replies += await converse(run, seed, 4)
        for salt in ("tenant-a", "tenant-b"):
            replies += await converse(run, 0, 3, cache_salt=salt)
        assert [reply.predicted_hit for reply in replies] == [r.cached_tokens for r in replies]
        turns = enumerate(pairwise(replies[:24]), 1)
        stayed = [now for n, (past, now) in turns if n % 4 and now.replica == past.replica]
        assert stayed
        assert all(reply.cached_tokens > 0 for reply in stayed)
        rows = (await run.replicas()).values()
        assert all(row["trust"] == "exact" for row in rows)
        assert all(row["in_flight"] == 0 for row in rows)


async def test_turns_follow_their_conversation_and_new_ones_spread():
    async with fleet(3, engine_flags=("--profile", "laptop")) as run:
        talks = await asyncio.gather(*(converse(run, seed, 3, words=500) for seed in range(9)))
        pairs = [(one[i].replica, one[i + 1].replica) for one in talks for i in range(2)]
        moved = sum(before != after for before, after in pairs)
        # by chance two of three would move
        assert moved <= 2
        assert len({replica for pair in pairs for replica in pair}) == 3


async def test_a_client_that_leaves_ends_the_engines_work_and_the_claim():
    async with fleet(1, engine_flags=("--profile", "laptop")) as run:

        async def leave() -> None:
            messages = [{"role": "user", "content": talk(Random(1), 50)}]
            await chat(run.session, run.router.url, run.model, messages, max_tokens=3000)

        for stream in (True, False):
            asking = asyncio.create_task(leave() if stream else leave_plain(run))
            await until(lambda: in_flight_is(run, 1))
            asking.cancel()
            await asyncio.wait([asking])
            await until(lambda: in_flight_is(run, 0))
            await until(lambda: engine_is_idle(run))


async def leave_plain(run: Fleet) -> None:
    body = {
        "model": run.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3000,
        "ignore_eos": True,
    }
    async with run.session.post(run.router.url + "/v1/chat/completions", json=body) as response:
        await response.read()


async def in_flight_is(run: Fleet, count: int) -> bool:
    return bool((await run.replicas())["r1"]["in_flight"] == count)


async def engine_is_idle(run: Fleet) -> bool:
    async with run.session.get(run.engines[0].url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    running = [line for line in lines if line.startswith("vllm:num_requests_running{")]
    return all(line.endswith(" 0.0") for line in running) and bool(running)
