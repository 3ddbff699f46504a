"""The router asks engines how large their caches are, and then minds how full they get."""

import asyncio
from typing import Any

from tests.support.engines import plain_engine
from tests.support.gateway import Gateway, gateway
from tests.support.processes import until
from workers.engine import EngineOptions, RunningEngine, run_engine

OPTIONS = EngineOptions(speed_up=1.0, num_blocks=128)
BLOCK = 16
SOON = {"interval_s": 0.05, "retry_interval_s": 0.05}


def settings_of(engine: RunningEngine, **more: Any) -> dict[str, Any]:
    return {
        "id": "r1",
        "url": engine.url,
        "events": engine.events_url,
        "replay": engine.replay_url,
        **more,
    }


async def row_of(run: Gateway) -> dict[str, Any]:
    async with run.client.get("/debug/replicas") as response:
        (row,) = (await response.json())["replicas"]
        return dict(row)


async def explained(run: Gateway, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": list(range(1000, 1064))}
    async with run.client.post("/debug/explain?path=/v1/completions", json=body) as response:
        (row,) = (await response.json())["replicas"]
        return dict(row)


async def ask(run: Gateway, engine: RunningEngine, first: int) -> None:
    body = {
        "model": engine.model,
        "prompt": list(range(first, first + 700)),
        "max_tokens": 1200,
        "ignore_eos": True,
        "stream": True,
    }
    async with run.client.post("/v1/completions", json=body) as reply:
        await reply.read()


async def test_the_engine_says_how_large_its_cache_is():
    async with run_engine(OPTIONS) as engine, gateway([settings_of(engine)]) as run:
        await until(lambda: _is_known(run, 128 * BLOCK))
        row = await row_of(run)
        assert row["engine"]["running"] == row["engine"]["waiting"] == 0


async def test_requests_in_flight_fill_it_and_a_new_prompt_is_told_to_wait():
    async with run_engine(OPTIONS) as engine, gateway([settings_of(engine)], health=SOON) as run:
        await until(lambda: _is_known(run, 128 * BLOCK))
        assert (await explained(run, engine.model))["full"] == 0
        asking = [asyncio.create_task(ask(run, engine, 1000 * n)) for n in (2, 3)]
        try:
            await until(lambda: _is_full(run, engine.model))
            # what the router reckons is what the engine holds
            await until(lambda: _engine_is_full(run))
            assert (await explained(run, engine.model))["memory_wait_ms"] == 0
            asking.append(asyncio.create_task(ask(run, engine, 4000)))
            await until(lambda: _waits_for_memory(run, engine.model))
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: _is_empty(run, engine.model))


async def test_the_settings_go_before_what_an_engine_says():
    settings = settings_of
    async with run_engine(OPTIONS) as engine, gateway([settings(engine, cache_tokens=999)]) as run:
        await until(lambda: _is_known(run, 999))
        assert (await row_of(run))["engine"]["cache_tokens"] == 128 * BLOCK


async def test_an_engine_without_metrics_serves_all_the_same():
    async with plain_engine() as engine, gateway([{"id": "r1", "url": engine.url}]) as run:
        row = await row_of(run)
        assert row["is_healthy"]
        assert row["cache_tokens"] == 0


async def test_a_replica_further_away_is_predicted_to_answer_later():
    far = {"id": "r1", "url": "", "distance_ms": 70.0}
    async with plain_engine() as engine, gateway([{**far, "url": engine.url}]) as run:
        row = await explained(run, engine.model)
        assert row["distance_ms"] == 70.0
        assert row["ttft_ms"] > 70.0


async def _is_known(run: Gateway, tokens: int) -> bool:
    row = await row_of(run)
    return bool(row["cache_tokens"] == tokens and row["engine"]["running"] is not None)


async def _is_full(run: Gateway, model: str) -> bool:
    return bool((await explained(run, model))["full"] > 0.6)


async def _engine_is_full(run: Gateway) -> bool:
    return float((await row_of(run))["engine"]["cache_usage"] or 0) > 0.6


async def _waits_for_memory(run: Gateway, model: str) -> bool:
    return bool((await explained(run, model))["memory_wait_ms"] > 0)


async def _is_empty(run: Gateway, model: str) -> bool:
    return bool((await explained(run, model))["full"] == 0)
