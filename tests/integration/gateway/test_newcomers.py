"""A replica that joins later is warmed up, gets its share, and flaps count for nothing."""

import json
import re

import aiohttp
import pytest
from aiohttp import web

from router.config import parse_config
from router.newcomers import FLAP_S, Newcomers
from router.replicas import Pool
from router.routing.hot import NothingHot
from router.routing.ramp import Ramp
from tests.support.builders import ManualClock, model_rows, replica
from tests.support.engines import PlainEngine, listening
from tests.support.gateway import gateway
from tests.support.processes import until

SYSTEM = " ".join(f"rule {number}" for number in range(200))


class Silent(PlainEngine):
    """Says nothing of what it counted; `takes_ids`: whether prompts of token ids are welcome."""

    takes_ids = True

    async def complete(self, request):
        if request.path.endswith("/v1/completions") and not self.takes_ids:
            return web.Response(status=404)
        self.requests.append((dict(request.headers), await request.read()))
        return web.json_response({"id": "x", "choices": []})


def silent_engine(*, takes_ids=True):
    engine = Silent()
    engine.takes_ids = takes_ids
    return listening(engine)


def serving(engine, **routing):
    return gateway([{"id": "r1", "url": engine.url}], routing=routing)


async def ask(served, number):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"no {number}"}]
    body = json.dumps({"model": "m", "messages": messages})
    async with served.client.post("/v1/chat/completions", data=body) as response:
        assert response.status == 200
        return response.headers["x-warmgate-replica"]


async def add(served, *engines):
    replicas = [{"id": f"r{n}", "url": engine.url} for n, engine in enumerate(engines, 1)]
    served.runtime.reload(parse_config({"replicas": replicas}))


def settle(served):
    """From now on who comes is new, as if the router had been up for long."""
    served.runtime.newcomers.settled_at = served.runtime.clock()


async def test_a_new_replica_computes_what_many_share_before_it_is_asked():
    async with (
        silent_engine() as one,
        silent_engine() as other,
        serving(one, warm_tokens=5000, warm_s=10.0) as served,
    ):
        for number in range(4):
            await ask(served, number)
        settle(served)
        await add(served, one, other)

        async def is_warm():
            async with served.client.get("/metrics") as response:
                text = await response.text()
            found = re.search(r"^warmgate_warm_up_tokens_total (\S+)", text, re.MULTILINE)
            return found is not None and float(found[1]) > 200

        await until(is_warm)
        ((_, body),) = other.requests
        sent = json.loads(body)
        assert (sent["model"], sent["max_tokens"]) == ("m", 1)
        assert len(sent["prompt"]) > 200
        assert all(isinstance(token, int) for token in sent["prompt"])
        chooser = served.runtime.planner.chooser
        assert chooser.ramp.share("r2", served.runtime.clock()) == 1.0


async def test_a_warm_up_that_is_refused_is_only_that():
    async with (
        silent_engine() as one,
        silent_engine(takes_ids=False) as other,
        serving(one, warm_tokens=5000, warm_s=10.0) as served,
    ):
        for number in range(4):
            await ask(served, number)
        settle(served)
        await add(served, one, other)

        async def is_in():
            member = served.runtime.pool.get("r2")
            return member is not None and member.is_healthy

        await until(is_in)

        async def is_open():
            ramp = served.runtime.planner.chooser.ramp
            return ramp.share("r2", served.runtime.clock()) == 1.0

        await until(is_open)
        served.runtime.pool.mark_down("r1", "gone")
        assert await ask(served, 9) == "r2"


async def test_its_share_is_seen_while_it_grows():
    async with (
        silent_engine() as one,
        silent_engine() as other,
        serving(one, ramp_s=600.0) as served,
    ):
        settle(served)
        await add(served, one, other)

        async def row():
            async with served.client.get("/debug/replicas") as response:
                rows = (await response.json())["replicas"]
            return next((r for r in rows if r["id"] == "r2" and r["is_healthy"]), None)

        async def is_in():
            return await row() is not None

        await until(is_in)
        found = await row()
        assert found is not None
        assert 0 <= found["share"] < 0.1
        async with served.client.get("/metrics") as response:
            text = await response.text()
        shown = re.search(r'^warmgate_replica_share{replica="r2"} (\S+)', text, re.MULTILINE)
        assert shown is not None
        assert float(shown[1]) < 0.1
        assert {await ask(served, number) for number in range(8)} == {"r1"}


@pytest.fixture
async def world():
    clock = ManualClock()
    pool, ramp = Pool(clock), Ramp(10.0)
    async with aiohttp.ClientSession() as session:
        newcomers = Newcomers(ramp, NothingHot(), session, clock, clock() + 30.0, 1.0)
        pool.on_health.append(newcomers.health_changed)
        pool.reconcile([replica("r1"), replica("r2")])
        yield clock, pool, ramp, newcomers


def share(world, name="r1"):
    clock, _, ramp, _ = world
    return ramp.share(name, clock())


async def test_while_the_router_starts_nobody_is_new(world):
    clock, pool, _, _ = world
    clock.advance(29.0)
    pool.mark_up("r1", model_rows("m"))
    assert share(world) == 1.0
    clock.advance(2.0)
    pool.mark_up("r2", model_rows("m"))
    assert share(world, "r2") == 0.0
    clock.advance(5.0)
    assert share(world, "r2") == 0.5


async def test_a_flap_is_no_restart(world):
    clock, pool, _, _ = world
    pool.mark_up("r1", model_rows("m"))
    clock.advance(60.0)
    for away_s, expected in ((FLAP_S - 1, 1.0), (FLAP_S + 1, 0.0)):
        pool.mark_down("r1", "away")
        clock.advance(away_s)
        pool.mark_up("r1", model_rows("m"))
        assert share(world) == expected


async def test_one_that_left_is_forgotten(world):
    clock, pool, ramp, newcomers = world
    clock.advance(60.0)
    pool.mark_up("r1", model_rows("m"))
    newcomers.forget("r1")
    assert ramp.is_idle
