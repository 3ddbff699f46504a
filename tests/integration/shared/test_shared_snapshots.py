"""The index in Redis: a router that starts without a sibling stands where another stood."""

import os
import zlib

import pytest

from router.events.snapshot import decode_snapshot
from router.shared import RedisStore, SharedSnapshots, SnapshotLimits, connect
from tests.support.processes import fleet, start_router, until
from tests.support.redis_server import needs_redis, redis_server

pytestmark = needs_redis
ENGINE = ("--profile", "laptop", "--speed-up", "20", "--log-level", "error")
# no replay reaches further back than two steps: what a router knows it has been told
FORGETFUL = (*ENGINE, "--buffer-steps", "2")
MOST = 1 << 20


def snapshots(server, *, name="one", version=1, max_bytes=MOST, interval_s=60.0):
    store = RedisStore(connect(server.url, 1.0), "warmgate", 1.0)
    return SharedSnapshots(store, name, version, SnapshotLimits(max_bytes, interval_s))


def gives(raw):
    async def take():
        return raw

    return take


async def test_one_router_writes_in_an_interval_and_all_read_it():
    async with redis_server() as server:
        one, two = snapshots(server), snapshots(server, name="two")
        assert await one.read() is None
        assert await one.write(gives(b"of one"))
        assert not await two.write(gives(b"of two"))
        assert await two.read() == b"of one"
        for each in (one, two):
            await each.store.aclose()


async def test_another_format_has_a_key_of_its_own():
    async with redis_server() as server:
        old, new = snapshots(server), snapshots(server, version=2)
        assert await old.write(gives(b"old"))
        assert await new.read() is None
        assert await new.write(gives(b"new"))
        assert await old.read() == b"old"
        for each in (old, new):
            await each.store.aclose()


async def test_what_is_too_large_is_neither_written_nor_unpacked():
    async with redis_server() as server:
        small = snapshots(server, max_bytes=1000)
        assert not await small.write(gives(os.urandom(2000)))
        assert await small.read() is None
        await small.store.put(small.key, zlib.compress(bytes(10_000_000)), 60)
        assert await small.read() is None
        await small.store.put(small.key, b"no snapshot", 60)
        assert await small.read() is None
        await small.store.aclose()


async def test_a_full_or_absent_redis_costs_a_snapshot_and_nothing_else():
    async with redis_server() as server:
        one = snapshots(server)
        assert await server.command("CONFIG", "SET", "maxmemory", "1") == "+OK"
        assert not await one.write(gives(b"x"))
        await server.kill()
        assert not await one.write(gives(b"x"))
        assert await one.read() is None
        await one.store.aclose()


async def replicas(session, router):
    async with session.get(router.url + "/debug/replicas") as reply:
        return (await reply.json())["replicas"]


@pytest.mark.timeout(180)  # it starts three processes, one after the other
async def test_a_router_that_starts_alone_knows_what_the_last_one_left():
    async with redis_server() as server:
        flags = ("--set", f"shared.url={server.url}", "--set", "shared.snapshot_interval_s=0.5")
        reader = snapshots(server)
        async with fleet(1, engine_flags=FORGETFUL, router_flags=flags) as run:
            for number in range(6):
                prompt = [1000 + 100 * number + n for n in range(96)]
                body = {"model": run.model, "prompt": prompt, "max_tokens": 1}
                async with run.session.post(run.router.url + "/v1/completions", json=body) as reply:
                    assert reply.status == 200
                    await reply.read()

            async def all_is_there():
                raw = await reader.read()
                held = decode_snapshot(raw).values() if raw is not None else ()
                rows = await replicas(run.session, run.router)
                known = {row["id"]: row["index_blocks"] for row in rows if row["index_blocks"]}
                return bool(known) and {one.replica_id: one.held.blocks for one in held} == known

            await until(all_is_there)
            before = await replicas(run.session, run.router)
            await run.router.kill()
            again = await start_router(run.engines, *flags)
            try:

                async def is_exact():
                    rows = await replicas(run.session, again)
                    return {row["trust"] for row in rows} == {"exact"}

                await until(is_exact)
                after = await replicas(run.session, again)
            finally:
                await again.kill()
        await reader.store.aclose()
        held = [{row["id"]: row["index_blocks"] for row in rows} for rows in (before, after)]
        assert held[0] == held[1]
        assert sum(row["restored_blocks"] for row in after) > 0
