"""One of four engines is killed mid-run: it costs its own streams, and nothing else."""

import asyncio
from random import Random

from tests.support.processes import Fleet, fleet, start_again, until
from tests.support.streaming import Streamed, chat

ENGINE = ("--profile", "laptop", "--speed-up", "1")
WORDS = "river stone lamp cloud garden wheel paper mirror winter copper letter engine".split()


def conversation(seed: int, words: int) -> list[dict[str, str]]:
    rng = Random(seed)
    text = " ".join(rng.choice(WORDS) for _ in range(words))
    return [{"role": "system", "content": f"{seed}. {text}"}, {"role": "user", "content": "Go on."}]


async def ask(run: Fleet, seed: int, words: int = 400, max_tokens: int = 200) -> Streamed:
    messages = conversation(seed, words)
    return await chat(
        run.session, run.router.url, run.model, messages, max_tokens=max_tokens, ignore_eos=True
    )


async def busiest(run: Fleet) -> str | None:
    """A replica that decodes for one client while another still waits for its first token."""
    for name, row in (await run.replicas()).items():
        if row["load"]["running"] and row["load"]["waiting"]:
            return name
    return None


async def all_decode(run: Fleet, count: int) -> bool:
    rows = (await run.replicas()).values()
    return bool(sum(row["load"]["running"] for row in rows) == count)


async def test_only_streams_that_had_begun_are_lost_and_the_replica_comes_back():
    async with fleet(4, engine_flags=ENGINE) as run:
        asks = [asyncio.create_task(ask(run, seed)) for seed in range(8)]
        await until(lambda: all_decode(run, 8))
        asks += [asyncio.create_task(ask(run, seed, words=1500)) for seed in range(8, 24)]
        victims: list[str] = []

        async def found() -> bool:
            victims.extend(filter(None, [await busiest(run)]))
            return bool(victims)

        await until(found)
        victim = victims[0]
        number = int(victim[1:]) - 1
        await run.engines[number].kill()

        got = await asyncio.wait_for(asyncio.gather(*asks), 45)
        cut = [one for one in got if not one.is_done]
        assert cut
        assert all(one.replica == victim and one.chunks > 0 for one in cut)
        assert all(one.error and one.error["code"] and one.error["message"] for one in cut)
        assert all(one.status == 200 for one in got)
        whole = [one for one in got if one.is_done]
        assert all(one.error is None and one.usage["completion_tokens"] == 200 for one in whole)

        row = (await run.replicas())[victim]
        assert not row["is_healthy"]
        assert row["index_blocks"] == 0
        assert all(r["in_flight"] == 0 for r in (await run.replicas()).values())

        run.engines[number] = await start_again(run.engines[number], *ENGINE)

        async def is_back() -> bool:
            row = (await run.replicas())[victim]
            return bool(row["is_healthy"]) and row["trust"] == "exact"

        await until(is_back)
        again = await asyncio.gather(*(ask(run, seed, 100, 4) for seed in range(100, 124)))
        assert victim in {one.replica for one in again}
        assert all(one.is_done for one in again)
