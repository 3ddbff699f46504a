"""A request may make its engine report blocks that it reuses: they must not count as copies."""

from typing import Any

import pytest

from router.index.tiers import TieredIndex
from tests.integration.gateway.test_cache_sizes import OPTIONS, settings_of
from tests.support.events import prefix, removed, stored
from tests.support.gateway import gateway
from workers.engine import run_engine

TOKENS = list(range(8))


@pytest.mark.parametrize(("mode", "left"), [("full", {}), ("incremental", {"r1": 2})])
async def test_a_request_for_full_reports_tells_the_index_to_expect_them(mode, left):
    async with run_engine(OPTIONS) as engine, gateway([settings_of(engine)]) as run:
        body: dict[str, Any] = {
            "model": engine.model,
            "prompt": list(range(1000, 1064)),
            "max_tokens": 1,
            "vllm_xargs": {"kv_cache_report_mode": mode},
        }
        async with run.client.post("/v1/completions", json=body) as reply:
            assert reply.status == 200
            await reply.read()
        index = run.runtime.index
        assert isinstance(index, TieredIndex)
        for _ in range(2):
            index.store("r1", stored([1, 2], TOKENS))
        index.remove("r1", removed(1, 2))
        assert index.match(prefix(TOKENS)) == left
