"""A router without any tokenizer gets its engine's, and predicts what the engine reuses."""

import aiohttp
import pytest
import yaml

from tests.support.processes import start, start_engine, until
from tests.support.streaming import chat


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


TEXT = "harbour valley feather window market ladder " * 40


async def test_a_router_without_a_directory_tokenizes_by_its_replicas_files(tmp_path, http):
    kept = tmp_path / "models"
    config = tmp_path / "router.yaml"
    settings = {"fetch": True, "fetch_dir": str(kept), "remote": False}
    config.write_text(yaml.safe_dump({"tokens": settings}))
    engine = await start_engine("--profile", "laptop", "--speed-up", "20")
    router = None
    try:
        replica = f"id=r1,url={engine.url},events={engine.ready['events_url']}"
        replica += f",replay={engine.ready['replay_url']}"
        router = await start(
            "router.cli", "serve", "--port", "0", "--config", str(config), "--replica", replica
        )
        url, model = router.url, str(engine.ready["model"])

        async def is_predicted() -> bool:
            reply = await chat(http, url, model, [{"role": "user", "content": TEXT}])
            return 0 < reply.cached_tokens == reply.predicted_hit

        async def is_up() -> bool:
            async with http.get(url + "/readyz") as response:
                return bool(response.status == 200)

        await until(is_up)
        await until(is_predicted)
        assert [path.name for path in kept.glob("*/tokenizer.json")] == ["tokenizer.json"]
    finally:
        for program in filter(None, (router, engine)):
            await program.kill()
