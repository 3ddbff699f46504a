"""A router asks a central index over a real socket: the same answers, in time or not at all."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from router.blocks import BlockRemoved, BlockStored
from router.central import Address, AskLimits, CentralIndex, Desk, Place, wire
from router.events.history import CacheShape, RoutedHistory
from router.events.keeper import Keeper
from router.events.trust import Trust
from router.index.answers import NO_ANSWERS
from router.index.tiers import TieredIndex
from tests.support.builders import ManualClock, NoSources
from tests.support.events import BLOCK_SIZE, prefix, stored
from tests.support.processes import until

TOKENS = list(range(40))
PREFIX = prefix(TOKENS)
PATIENT = AskLimits(deadline_s=5.0)


@dataclass
class Central:
    """An index with a desk; `address` is where it listens."""

    index: TieredIndex
    keeper: Keeper
    desk: Desk
    address: Address


def central(token: bytes = b"", place: Place | None = None, **more) -> Central:
    index = TieredIndex(clock=ManualClock(), **more)
    keeper = Keeper(index, NoSources())
    return Central(index, keeper, Desk(index, keeper, token, memory=place), Address())


@asynccontextmanager
async def listening(made: Central, address: Address):
    async with made.desk.open(address) as bound:
        made.address = bound
        telling = asyncio.create_task(made.desk.tell())
        try:
            yield made
        finally:
            telling.cancel()
            await asyncio.wait([telling])


@asynccontextmanager
async def asking(address: Address, *, token: bytes = b"", limits: AskLimits = PATIENT):
    router = CentralIndex(address, token, limits)
    running = asyncio.create_task(router.run())
    try:
        yield router
    finally:
        running.cancel()
        await asyncio.wait([running])


async def connected(router: CentralIndex) -> None:
    async def is_connected():
        return router.is_connected

    await until(is_connected)


@pytest.fixture(params=["unix", "tcp"])
def address(request, tmp_path):
    return (
        Address(path=str(tmp_path / "i")) if request.param == "unix" else Address("", "127.0.0.1")
    )


async def test_answers_are_those_of_the_index_itself_tiers_included(address):
    made = central(load_ms_per_ktoken={"cpu": 50.0})
    made.index.store("r1", stored(range(1, 5), TOKENS[: 4 * BLOCK_SIZE]))
    made.index.store("r2", stored(range(1, 3), TOKENS[: 2 * BLOCK_SIZE]))
    made.index.store("r2", stored(range(1, 8), TOKENS[: 7 * BLOCK_SIZE], medium="cpu"))
    other = prefix(range(100, 140))
    async with listening(made, address), asking(made.address) as router:
        await connected(router)
        known, failure = await router.ask([PREFIX, other])
        assert failure == ""
        matched = made.index.match(PREFIX)
        assert known.match(PREFIX) == matched == {"r1": 4, "r2": 2}
        assert known.beyond(PREFIX, matched) == made.index.beyond(PREFIX, matched) != {}
        assert known.match(other) == {}
        assert router.outcomes == Counter({"in_time": 1})


async def test_many_questions_at_once_each_get_their_own_answer(address):
    made = central()
    prompts = [list(range(n, n + 40)) for n in range(0, 4000, 100)]
    for number, tokens in enumerate(prompts):
        blocks = number % 9 + 1
        handles = range(1000 * number + 1, 1000 * number + 1 + blocks)
        made.index.store("r1", stored(handles, tokens[: blocks * BLOCK_SIZE]))
    async with listening(made, address), asking(made.address) as router:
        await connected(router)
        answers = await asyncio.gather(*(router.ask([prefix(t)]) for t in prompts))
        depths = [
            known.match(prefix(t))["r1"] for (known, _), t in zip(answers, prompts, strict=True)
        ]
        assert depths == [number % 9 + 1 for number in range(40)]


async def test_what_the_index_knows_of_replicas_is_known_to_routers(address):
    made = central()
    made.index.store("r1", stored([1, 2], TOKENS[: 2 * BLOCK_SIZE]))
    made.keeper.of("r1").trust.set(Trust.EXACT)
    made.keeper.of("r1").counters.frames = 3
    made.keeper.of("r2")
    async with listening(made, address), asking(made.address) as router:
        assert router.of("r1").trust.trust is Trust.BLIND

        async def told():
            return router.replicas() == {"r1": 2, "r2": 0}

        await until(told)
        assert router.block_sizes("r1") == {BLOCK_SIZE}
        assert router.of("r1").trust.trust is Trust.EXACT
        assert router.of("r1").counters.frames == 3
        assert router.is_learning("r2")
        assert not router.is_learning("r1")
        made.keeper.of("r1").trust.set(Trust.DEGRADED, "a gap")

        async def changed():
            return router.of("r1").trust.reason == "a gap"

        await until(changed)


async def test_an_index_that_is_away_costs_no_time_and_is_found_again(address):
    made = central()
    made.index.store("r1", stored([1, 2], TOKENS[: 2 * BLOCK_SIZE]))
    made.keeper.of("r1").trust.set(Trust.EXACT)
    async with asking(address) as router:
        assert await router.ask([PREFIX]) == (NO_ANSWERS, "down")
    async with listening(made, address), asking(made.address) as router:
        await connected(router)
        await until(lambda: knows_sizes(router))
        for visitor in list(made.desk._joined):
            visitor.leave()

        async def lost():
            return not router.is_connected

        await until(lost)
        assert await router.ask([PREFIX]) == (NO_ANSWERS, "down")
        assert router.of("r1").trust.trust is Trust.BLIND
        assert router.block_sizes("r1") == {BLOCK_SIZE}
        await connected(router)
        assert (await router.ask([PREFIX]))[0].match(PREFIX) == {"r1": 2}


async def knows_sizes(router):
    return bool(router.block_sizes("r1"))


@asynccontextmanager
async def silent_index(tmp_path, *, beats: bool):
    """Welcomes routers and never answers; with `beats` it says at least that it is there."""
    asked: asyncio.Queue[int] = asyncio.Queue()

    async def serve(reader, writer):
        writer.write(wire.hello(bytes(wire.NONCE_BYTES)))
        splitter = wire.Splitter(wire.MAX_BYTES)
        while data := await reader.read(2**16):
            for kind, body in splitter.feed(data):
                if kind == wire.Kind.JOIN:
                    own = body[wire.NONCE_BYTES :]
                    proof = wire.proof(b"", b"index", own)
                    writer.write(wire.frame(wire.Kind.WELCOME, proof))
                asked.put_nowait(kind)
                if beats:
                    writer.write(wire.news(wire.StateNews()))
        writer.close()

    path = str(tmp_path / "silent")
    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield Address(path=path), asked


async def test_a_question_past_its_deadline_is_given_up(tmp_path):
    limits = AskLimits(deadline_s=0.01)
    async with (
        silent_index(tmp_path, beats=True) as (where, _),
        asking(where, limits=limits) as router,
    ):
        await connected(router)
        assert await router.ask([PREFIX]) == (NO_ANSWERS, "late")
        assert router.outcomes == Counter({"late": 1})


async def test_more_questions_than_may_wait_are_not_put(tmp_path):
    limits = AskLimits(deadline_s=0.3, max_questions=3)
    async with (
        silent_index(tmp_path, beats=True) as (where, _),
        asking(where, limits=limits) as router,
    ):
        await connected(router)
        got = await asyncio.gather(*(router.ask([PREFIX]) for _ in range(5)))
        assert sorted(failure for _, failure in got) == ["busy", "busy", "late", "late", "late"]


async def test_an_index_that_says_nothing_any_more_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr("router.central.client.SILENCE_S", 0.1)
    async with silent_index(tmp_path, beats=False) as (where, _), asking(where) as router:
        await connected(router)
        waiting = asyncio.create_task(router.ask([PREFIX]))
        assert await asyncio.wait_for(waiting, 5) == (NO_ANSWERS, "down")


async def test_only_who_knows_the_token_may_ask(address):
    made = central(b"secret")
    async with listening(made, address):
        async with asking(made.address, token=b"guess") as router:

            async def refused():
                return made.desk.counters.refused > 0

            await until(refused)
            assert not router.is_connected
            assert made.desk.routers == 0
        async with asking(made.address, token=b"secret") as router:
            await connected(router)


async def test_a_router_asks_nobody_who_does_not_know_its_token(tmp_path):
    async with (
        silent_index(tmp_path, beats=True) as (where, asked),
        asking(where, token=b"secret") as router,
    ):
        assert await asyncio.wait_for(asked.get(), 5) == wire.Kind.JOIN
        assert await asyncio.wait_for(asked.get(), 5) == wire.Kind.JOIN
        assert not router.is_connected


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 4096])
async def test_strangers_are_shown_out(address, raw):
    made = central()
    async with listening(made, address):
        reader, writer = (
            await asyncio.open_unix_connection(made.address.path)
            if made.address.path
            else await asyncio.open_connection(made.address.host, made.address.port)
        )
        writer.write(raw)
        try:
            async with asyncio.timeout(5):
                await reader.read()
        except ConnectionResetError:
            pass
        assert made.desk.routers == 0
        writer.close()


async def test_real_hits_reach_the_trust_and_clear_what_was_wrong(address):
    made = central()
    made.index.store("r1", stored([1, 2], TOKENS[: 2 * BLOCK_SIZE]))
    made.keeper.of("r1").trust.set(Trust.EXACT)
    async with listening(made, address), asking(made.address) as router:
        await connected(router)
        for _ in range(3):
            router.observe_hit("r1", 2 * BLOCK_SIZE, 0, age_s=0.0)

        async def degraded():
            return router.of("r1").trust.trust is Trust.DEGRADED and not made.index.match(PREFIX)

        await until(degraded)


async def test_prompts_served_by_replicas_without_events_are_remembered_for_all(address):
    made = central()
    watched = made.keeper.of("r1")
    watched.may_guess = True
    watched.history = RoutedHistory(made.index, "r1", CacheShape(BLOCK_SIZE, 100))
    watched.trust.set(Trust.APPROXIMATE, "no events")
    async with listening(made, address), asking(made.address) as one, asking(made.address) as two:
        await connected(one)
        await connected(two)
        await until(lambda: knows_sizes(one))
        one.served("r1", PREFIX, None)

        async def known():
            return (await two.ask([PREFIX]))[0].match(PREFIX) == {"r1": len(PREFIX)}

        await until(known)


async def test_a_replica_that_a_router_can_not_reach_is_probed_at_once(address):
    made = central()
    hurried: list[str] = []
    made.desk.hurry = hurried.append
    async with listening(made, address), asking(made.address) as router:
        await connected(router)
        router.suspect("r1")

        async def is_hurried():
            return hurried == ["r1"]

        await until(is_hurried)


async def test_a_stored_block_is_in_the_very_next_answer(address):
    made = central()
    async with listening(made, address), asking(made.address) as router:
        await connected(router)
        for blocks in range(1, 8):
            made.index.store(
                "r1",
                BlockStored(
                    (blocks,), blocks - 1 or None, TOKENS[(blocks - 1) * 4 : blocks * 4], 4
                ),
            )
            assert (await router.ask([PREFIX]))[0].match(PREFIX) == {"r1": blocks}


async def test_blocks_that_are_reported_again_count_once_when_a_router_says_so(address):
    made = central()
    async with listening(made, address), asking(made.address) as router:
        await connected(router)
        router.expect_reused("r1")

        async def is_told():
            return "r1" in made.index.replicas()

        await until(is_told)
        for _ in range(2):
            made.index.store("r1", stored([1, 2], TOKENS[: 2 * BLOCK_SIZE]))
        made.index.remove("r1", BlockRemoved((1, 2)))
        assert (await router.ask([PREFIX]))[0].match(PREFIX) == {}
