"""A router that starts beside running engines knows what its sibling, or its file, knows."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from router.index.tiers import TieredIndex
from tests.support.gateway import Gateway, gateway
from tests.support.processes import until
from workers.engine import EngineOptions, RunningEngine, run_engine

# A short memory of events: who comes late can't learn the past from the engine.
OPTIONS = EngineOptions(speed_up=30.0, buffer_steps=4, num_blocks=600)


def settings_of(engine: RunningEngine) -> dict[str, Any]:
    return {
        "id": "r1",
        "url": engine.url,
        "events": engine.events_url,
        "replay": engine.replay_url,
    }


async def ask(run: Gateway, engine: RunningEngine, seed: int) -> int:
    """Send the prompt number `seed`; returns its cached tokens."""
    body = {"model": engine.model, "prompt": prompt(seed), "max_tokens": 2}
    async with run.client.post("/v1/completions", json=body) as reply:
        answer = await reply.json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def prompt(seed: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(1000, 40_000) for _ in range(100)]


def trust_of(run: Gateway) -> tuple[str, str]:
    trust = run.runtime.keeper.of("r1").trust
    return str(trust.trust), trust.reason


async def is_refused(run: Gateway) -> bool:
    return trust_of(run)[1] == "connection refused"


async def knows_all(run: Gateway, engine: RunningEngine) -> bool:
    index = run.runtime.index
    assert isinstance(index, TieredIndex)
    return index.blocks_of("r1") == set(engine.cached())


async def warm_up(run: Gateway, engine: RunningEngine) -> None:
    for seed in range(20):
        await ask(run, engine, seed)
    await until(lambda: knows_all(run, engine))


async def test_a_sibling_gives_a_new_router_all_that_it_knows():
    async with run_engine(OPTIONS) as engine, gateway([settings_of(engine)]) as first:
        await warm_up(first, engine)
        async with gateway([settings_of(engine)], index={"siblings": [first.url]}) as second:
            assert trust_of(second) == ("exact", "")
            assert await knows_all(second, engine)
            assert second.runtime.keeper.restored["r1"] >= len(engine.cached())
            await ask(second, engine, 3)
            await ask(first, engine, 77)
            await until(lambda: knows_all(second, engine))
            assert trust_of(second) == ("exact", "")


async def test_without_a_sibling_what_was_lost_is_said():
    async with run_engine(OPTIONS) as engine, gateway([settings_of(engine)]) as first:
        await warm_up(first, engine)
        async with gateway([settings_of(engine)]) as second:
            trust, reason = trust_of(second)
            assert trust == "degraded"
            assert reason.startswith("history before frame")
            assert not await knows_all(second, engine)


async def test_a_file_does_as_well_as_a_sibling(tmp_path: Path):
    sections = {"snapshot_file": str(tmp_path / "index.snapshot")}
    async with run_engine(OPTIONS) as engine:
        async with gateway([settings_of(engine)], index=sections) as first:
            await warm_up(first, engine)
        async with gateway([settings_of(engine)], index=sections) as second:
            assert trust_of(second) == ("exact", "")
            assert await knows_all(second, engine)


async def test_a_snapshot_of_another_life_of_the_engine_is_not_believed(tmp_path: Path):
    sections = {"snapshot_file": str(tmp_path / "index.snapshot")}
    async with run_engine(OPTIONS) as engine:
        async with gateway([settings_of(engine)], index=sections) as first:
            await warm_up(first, engine)
        await engine.restart()
        async with gateway([settings_of(engine)], index=sections) as second:
            await asyncio.sleep(0)
            await ask(second, engine, 3)
            await until(lambda: knows_all(second, engine))
            assert trust_of(second) == ("exact", "")


async def test_an_unreadable_file_and_a_dead_sibling_cost_only_what_they_would_have_given(
    tmp_path: Path,
):
    file = tmp_path / "index.snapshot"
    file.write_bytes(b"\x93nonsense")
    sections = {"snapshot_file": str(file), "siblings": ["http://127.0.0.1:9"]}
    async with run_engine(OPTIONS) as engine, gateway([settings_of(engine)], index=sections) as run:
        await ask(run, engine, 3)
        await until(lambda: knows_all(run, engine))


async def test_what_is_not_known_is_said_in_metrics_and_to_who_asks_for_an_explanation():
    async with run_engine(OPTIONS) as engine:
        silent = {"id": "r1", "url": engine.url, "events": "tcp://127.0.0.1:9"}
        async with gateway([silent]) as run:
            await until(lambda: is_refused(run))
            async with run.client.get("/metrics") as reply:
                text = await reply.text()
            said = 'reason="connection refused",replica="r1",trust="blind"} 1.0'
            assert any(said in line for line in text.splitlines() if "index_trust{" in line)
            body = {"model": engine.model, "prompt": list(range(1000, 1064))}
            async with run.client.post("/debug/explain?path=/v1/completions", json=body) as reply:
                (row,) = (await reply.json())["replicas"]
            assert (row["trust"], row["trust_reason"]) == ("blind", "connection refused")
