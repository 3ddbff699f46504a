"""Where would it go, and why: asked of a running gateway, without any effect on it."""

import asyncio
import json

import pytest

from router.cli import main
from tests.support.engines import chat_body, plain_engine
from tests.support.gateway import gateway


@pytest.fixture(params=["cache-aware", "round-robin"])
async def served(request):
    async with (
        plain_engine() as one,
        plain_engine() as other,
        gateway(
            [{"id": "r1", "url": one.url}, {"id": "r2", "url": other.url}],
            routing={"policy": request.param},
        ) as served,
    ):
        yield served


async def explain(served):
    async with served.client.post("/debug/explain", data=chat_body()) as response:
        assert response.status == 200
        return await response.json()


async def test_the_answer_is_what_then_happens(served):
    answer = await explain(served)
    async with served.client.post("/v1/chat/completions", data=chat_body()) as response:
        assert response.headers["x-warmgate-replica"] == answer["replicas"][0]["id"]


async def test_asking_changes_nothing(served):
    answers = [await explain(served) for _ in range(3)]
    order = [[row["id"] for row in answer["replicas"]] for answer in answers]
    assert order[0] == order[1] == order[2]
    assert served.runtime.in_flight() == 0


async def test_each_replica_is_explained_in_numbers(served):
    answer = await explain(served)
    assert answer["prompt_tokens"] > 0
    for row in answer["replicas"]:
        assert row["ttft_ms"] > 0
        assert row["tiers"] == {"gpu": row["matched_blocks"]}
        assert row["because"]
        assert row["cost_ms"] >= row["ttft_ms"]


async def test_the_command_shows_the_same(served, tmp_path, capsys):
    body = tmp_path / "body.json"
    body.write_bytes(chat_body())
    words = ["explain", str(body), "--url", served.url, "--json"]
    assert await asyncio.to_thread(main, words) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in shown["replicas"]]
    assert await asyncio.to_thread(main, words[:-1]) == 0
    assert "r1" in capsys.readouterr().out


async def test_a_router_that_is_not_there_is_named(tmp_path, capsys):
    body = tmp_path / "body.json"
    body.write_bytes(chat_body())
    assert await asyncio.to_thread(main, ["explain", str(body), "--url", "http://127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
