"""The self-test names each mistake that one can make, and passes where none was made."""

import asyncio
from array import array
from random import Random

import aiohttp
import pytest
import zmq.asyncio
from aiohttp import web

from router.events.keeper import Keeper
from router.events.sources import DialSources
from router.openai.generation import Generation
from router.parity import Parity, SelfTest, Verdict
from router.replicas import Replica
from router.tokens import LocalTokenizer
from tests.support.gateway import gateway
from tests.support.processes import MODEL_DIR, until
from workers.engine import EngineOptions, RunningEngine, run_engine

OPTIONS = EngineOptions(speed_up=20.0)


class Mistaken:
    """A tokenizer whose chat prompts, or all, begin with a wrong token."""

    def __init__(self, local: LocalTokenizer, paths: tuple[str, ...]) -> None:
        self._local = local
        self._paths = paths

    async def tokenize(self, generation: Generation) -> bytes:
        ids = array("I", await self._local.tokenize(generation))
        if generation.path in self._paths:
            ids[0] += 1
        return ids.tobytes()

    def recall(self, generation: Generation) -> bytes | None:
        return None


@pytest.fixture
def local() -> LocalTokenizer:
    return LocalTokenizer.load(MODEL_DIR)


def replica_of(engine: RunningEngine, **changes: str) -> Replica:
    fields = {"events_url": engine.events_url, "replay_url": engine.replay_url, **changes}
    return Replica("r2", engine.url, **fields)  # type: ignore[arg-type]


async def verdict_on(replica: Replica, tokenizer: object, **expected: object) -> Verdict:
    context = zmq.asyncio.Context()
    async with aiohttp.ClientSession() as session:
        try:
            sources = DialSources(context, session)
            parity = Parity(session, sources, lambda model: tokenizer, Random(1))  # type: ignore[arg-type, return-value]
            return await parity.check(replica, **expected)  # type: ignore[arg-type]
        finally:
            context.destroy(linger=0)


async def test_a_replica_without_mistakes_passes(local):
    async with run_engine(OPTIONS) as engine:
        verdict = await verdict_on(replica_of(engine), local, wanted_models=[engine.model])
        assert verdict.mistakes == ()
        assert verdict.block_size == 16
        assert "cached on the second ask" in verdict.facts


async def test_a_url_is_all_that_a_replica_needs_to_be_checked(local):
    async with run_engine(OPTIONS) as engine:
        assert (await verdict_on(Replica("r2", engine.url), local)).is_good


async def test_another_block_size_is_named(local):
    options = EngineOptions(speed_up=20.0, block_size=64)
    async with run_engine(options) as engine:
        verdict = await verdict_on(replica_of(engine), local, block_size=16)
        assert verdict.mistakes == (
            "replica r2 publishes block size 64, the index uses 16; "
            "start vLLM with --block-size 16",
        )


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (("/v1/chat/completions",), "wrong chat template: token 0"),
        (("/v1/chat/completions", "/v1/completions"), "wrong tokenizer: token 0"),
    ],
)
async def test_other_token_ids_are_blamed_on_the_template_or_the_tokenizer(local, paths, name):
    async with run_engine(OPTIONS) as engine:
        verdict = await verdict_on(replica_of(engine), Mistaken(local, paths))
        assert len(verdict.mistakes) == 1
        assert verdict.mistakes[0].startswith(name)


async def test_events_that_are_off_are_named_with_the_flag(local):
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        verdict = await verdict_on(Replica("r2", url), local)
    finally:
        await runner.cleanup()
    assert "--kv-events-config" in verdict.mistakes[0]


async def test_a_wrong_port_is_named_with_the_right_one(local):
    async with run_engine(OPTIONS) as engine:
        replica = replica_of(engine, events_url="tcp://127.0.0.1:9")
        (mistake,) = (await verdict_on(replica, local)).mistakes
        assert "wrong port?" in mistake
        assert engine.events_url.rpartition(":")[2] in mistake


async def test_the_event_port_of_another_engine_is_named(local):
    async with run_engine(OPTIONS) as engine, run_engine(OPTIONS) as other:
        replica = replica_of(engine, events_url=other.events_url)
        (mistake,) = (await verdict_on(replica, local)).mistakes
        assert "the event port is another engine's" in mistake


async def test_a_wrong_model_name_is_named(local):
    async with run_engine(OPTIONS) as engine:
        verdict = await verdict_on(replica_of(engine), local, wanted_models=["gpt-4"])
        assert verdict.mistakes[0].startswith("wrong model name: tokens.models names 'gpt-4'")


async def test_a_replica_that_does_not_answer_is_named(local):
    (mistake,) = (await verdict_on(Replica("r2", "http://127.0.0.1:9"), local)).mistakes
    assert "does not answer" in mistake


async def test_a_router_that_tests_itself_probes_each_replica_once_per_epoch():
    async with (
        run_engine(OPTIONS) as engine,
        gateway([settings_of(engine)], events={"self_test": True}) as run,
    ):
        trust = run.runtime.keeper.of("r2").trust

        async def was_probed() -> bool:
            return len(engine.cached()) > 0

        await until(was_probed)
        assert (trust.trust, trust.reason) == ("exact", "")


async def test_a_mistake_that_the_self_test_finds_costs_exact(local):
    wrong = Mistaken(local, ("/v1/chat/completions",))
    context = zmq.asyncio.Context()
    async with (
        run_engine(OPTIONS) as engine,
        gateway([settings_of(engine)]) as run,
        aiohttp.ClientSession() as session,
    ):
        keeper = run.runtime.keeper
        assert isinstance(keeper, Keeper)
        parity = Parity(session, DialSources(context, session), lambda model: wrong, Random(1))
        testing = asyncio.create_task(SelfTest(run.runtime.pool, keeper, parity).run())
        trust = keeper.of("r2").trust

        async def is_accused() -> bool:
            return trust.reason.startswith("wrong chat template")

        try:
            await until(is_accused)
            assert trust.trust == "degraded"
        finally:
            testing.cancel()
            await asyncio.wait([testing])
            context.destroy(linger=0)


def settings_of(engine: RunningEngine) -> dict[str, str]:
    urls = {"events": engine.events_url, "replay": engine.replay_url}
    return {"id": "r2", "url": engine.url, **urls}
