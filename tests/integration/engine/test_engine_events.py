"""The engine's sockets: numbers, layout, replay, faults, restarts."""

import asyncio
import signal
import sys
from random import Random

import aiohttp
import msgspec
import pytest

from router.blocks import BlockStored, Form, decode_batch
from tests.support.engine import (
    DEADLINE_S,
    Follower,
    events_of,
    eventually,
    kinds,
    post,
    subscribed,
)
from workers.engine import EngineOptions, EventFaults, Faults, HttpFaults, run_engine

FAST = EngineOptions(speed_up=100.0, seed=7, topic="kv-events")


async def ask(http, first, count=40, max_tokens=1):
    prompt = list(range(first, first + count))
    return await post(http, "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens})


async def ask_many(http, count):
    """`count` prompts that share nothing: a batch of events each."""
    for number in range(count):
        await ask(http, 1000 * number)


@pytest.fixture
async def engine():
    async with run_engine(FAST) as running:
        yield running


@pytest.fixture
async def http(engine):
    async with aiohttp.ClientSession(base_url=engine.url) as session:
        yield session


async def test_frames_are_numbered_from_zero_and_hold_vllms_current_layout(engine, http):
    async with subscribed(engine) as subscriber:
        await ask_many(http, 3)
        frames = await subscriber.frames(3)
    assert [frame.seq for frame in frames] == [0, 1, 2]
    assert {frame.topic for frame in frames} == {"kv-events"}
    ts, [event], rank = msgspec.msgpack.decode(frames[0].payload)
    assert (type(ts), rank) == (float, 0)
    hashes = event.pop("block_hashes")
    assert [type(value) for value in hashes] == [int, int]
    assert event == {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": list(range(32)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


async def test_the_older_array_layout_is_there_on_request():
    async with (
        run_engine(msgspec_replace(FAST, event_form=Form.ARRAY)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
        subscribed(running) as subscriber,
    ):
        await ask(http, 0)
        [frame] = await subscriber.frames(1)
    assert msgspec.msgpack.decode(frame.payload)[1][0][0] == "BlockStored"
    assert isinstance(decode_batch(frame.payload).events[0], BlockStored)


def msgspec_replace(options, **changes):
    fields = {name: getattr(options, name) for name in EngineOptions.__dataclass_fields__}
    return EngineOptions(**fields | changes)


async def test_a_replay_gives_what_was_published_from_a_number_on(engine, http):
    async with subscribed(engine) as subscriber:
        await ask_many(http, 5)
        frames = await subscriber.frames(5)
        assert await subscriber.replay(0) == frames
        assert await subscriber.replay(3) == frames[3:]
        assert await subscriber.replay(99) == []


async def test_the_buffer_forgets_old_batches():
    async with (
        run_engine(msgspec_replace(FAST, buffer_steps=3)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
        subscribed(running) as subscriber,
    ):
        await ask_many(http, 5)
        await subscriber.frames(5)
        assert [frame.seq for frame in await subscriber.replay(0)] == [2, 3, 4]


async def test_following_the_socket_reproduces_the_cache_under_pressure():
    """Many clients, a cache that is too small, aborts: still the events tell all."""
    options = msgspec_replace(FAST, num_blocks=50, max_num_seqs=6, max_model_len=600)
    rng = Random(5)
    async with (
        run_engine(options) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
        subscribed(running) as subscriber,
    ):

        async def client():
            for _ in range(12):
                stem = rng.randrange(4) * 1000
                prompt = [*range(stem, stem + rng.randrange(1, 300)), rng.randrange(9)]
                body = {"prompt": prompt, "max_tokens": rng.randrange(1, 120), "ignore_eos": True}
                try:
                    async with asyncio.timeout(rng.choice([0.02, 5.0, 5.0, 5.0])):
                        await post(http, "/v1/completions", body)
                except TimeoutError:
                    continue

        await asyncio.gather(*(client() for _ in range(8)))
        await eventually(lambda: not running.engine.load, "the end of all sequences")
        follower = Follower()
        for frame in await subscriber.replay(0):
            follower.publish(decode_batch(frame.payload).events)
        assert "R" in {kind for batch in follower.batches for kind in kinds(batch)}
        assert follower.copies == running.cached()


async def test_lost_batches_leave_a_gap_that_a_replay_fills(engine, http):
    async with subscribed(engine) as subscriber:
        await ask(http, 0)
        assert [frame.seq for frame in await subscriber.frames(1)] == [0]
        engine.set_faults(Faults(events=EventFaults(lose=1.0)))
        await ask(http, 1000)
        await eventually(lambda: subscriber.replay(1), "the batch: a reply may be faster")
        engine.set_faults(Faults())
        await ask(http, 2000)
        assert [frame.seq for frame in await subscriber.frames(1)] == [2]
        assert [frame.seq for frame in await subscriber.replay(1)] == [1, 2]


async def test_batches_can_be_lost_from_the_replay_as_well(engine, http):
    async with subscribed(engine) as subscriber:
        engine.set_faults(Faults(events=EventFaults(lose=1.0, lose_from_replay=True)))
        await ask(http, 0)
        engine.set_faults(Faults())
        await ask(http, 1000)
        assert [frame.seq for frame in await subscriber.replay(0)] == [1]


async def test_batches_can_come_twice_and_in_another_order(engine, http):
    async with subscribed(engine) as subscriber:
        engine.set_faults(Faults(events=EventFaults(duplicate=1.0)))
        await ask(http, 0)
        assert [frame.seq for frame in await subscriber.frames(2)] == [0, 0]
        engine.set_faults(Faults(events=EventFaults(reorder=1.0)))
        await ask_many(http, 5)
        assert [frame.seq for frame in await subscriber.frames(4)] == [2, 1, 4, 3]


async def test_batches_can_come_late(engine, http):
    async with subscribed(engine) as subscriber:
        engine.set_faults(Faults(events=EventFaults(delay_ms=300.0)))
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await ask(http, 0)
        await subscriber.frames(1)
        assert loop.time() - start_s >= 0.3


async def refuses(url):
    """Whether a new connection is refused."""
    try:
        async with aiohttp.request("GET", f"{url}/health") as reply:
            assert reply.status == 200
            return False
    except aiohttp.ClientConnectorError:
        return True


async def test_a_restart_begins_a_new_epoch_at_the_same_addresses(engine, http):
    async with subscribed(engine) as subscriber:
        await ask_many(http, 2)
        await subscriber.frames(2)
        addresses = (engine.url, engine.events_url, engine.replay_url)
        await engine.restart()
        assert (engine.url, engine.events_url, engine.replay_url) == addresses
        assert engine.cached() == {}

        async def first_frame():
            await ask(http, 0)
            frames = await subscriber.replay(0)
            return frames[:1]

        [frame] = await eventually(first_frame)
        assert frame.seq == 0
        assert kinds(events_of([frame])) == "S"


async def test_a_restart_can_keep_the_cache(engine, http):
    await ask(http, 0)
    before = engine.cached()
    await engine.restart(keep_cache=True)
    assert engine.cached() == before
    reply = await ask(http, 0)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


async def test_a_restart_over_http_breaks_what_runs():
    async with (
        run_engine(EngineOptions(speed_up=0.5)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        async with http.post("/v1/completions", json=body) as reply:
            await reply.content.readline()
            await post(http, "/restart", {"down_s": 0.3})
            with pytest.raises(aiohttp.ClientError):
                await reply.content.read()

        await eventually(lambda: refuses(running.url), "the refusal")

        async def serves():
            return not await refuses(running.url)

        await eventually(serves, "the new life")


async def test_refusing_connections_leaves_running_requests_alone():
    async with (
        run_engine(EngineOptions(speed_up=1.0)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
        request = asyncio.create_task(post(http, "/v1/completions", body))
        await eventually(lambda: running.engine.load, "the start")
        refusal = asyncio.create_task(running.refuse(0.3))
        await eventually(lambda: refuses(running.url), "the refusal")
        await refusal
        assert not await refuses(running.url)
        assert (await request)["usage"]["completion_tokens"] == 60


async def test_faults_are_set_and_healed_over_http(http):
    async with http.post("/faults", json={"http": {"error": 1.0, "error_status": 500}}) as reply:
        assert (await reply.json())["http"]["error_status"] == 500
    async with http.post("/v1/completions", json={"prompt": "x"}) as reply:
        assert reply.status == 500
        assert (await reply.json())["error"]["code"] == 500
    async with http.delete("/faults") as reply:
        assert reply.status == 200
    async with http.get("/faults") as reply:
        assert await reply.json() == msgspec.to_builtins(Faults())
    await ask(http, 0)
    for wrong in ({"http": {"error": 2}}, {"nonsense": 1}):
        async with http.post("/faults", json=wrong) as reply:
            assert reply.status == 400


async def read_stream(http, seen):
    """Read a stream of 20 tokens into `seen`, as far as it goes."""
    body = {"prompt": "x", "max_tokens": 20, "stream": True, "ignore_eos": True}
    async with http.post("/v1/completions", json=body) as reply:
        async for chunk in reply.content.iter_any():
            seen += chunk


@pytest.mark.parametrize("after", [0, 3])
async def test_a_stream_can_be_reset_after_some_tokens(engine, http, after):
    engine.set_faults(Faults(http=HttpFaults(reset=1.0, after_tokens=after)))
    seen = bytearray()
    with pytest.raises(aiohttp.ClientError):
        await read_stream(http, seen)
    assert seen.count(b"data: ") <= after
    await eventually(lambda: not engine.engine.load, "the release")


@pytest.mark.parametrize("after", [0, 3])
async def test_a_stream_can_stall_after_some_tokens(engine, http, after):
    engine.set_faults(Faults(http=HttpFaults(stall=1.0, after_tokens=after)))
    seen = bytearray()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_stream(http, seen), 0.5)
    assert seen.count(b"data: ") == after


@pytest.mark.parametrize(
    ("faults", "failure"),
    [
        (HttpFaults(reset=1.0, after_tokens=1), aiohttp.ClientError),
        (HttpFaults(stall=1.0, after_tokens=1), TimeoutError),
    ],
)
async def test_replies_in_one_piece_fail_as_well(engine, http, faults, failure):
    engine.set_faults(Faults(http=faults))
    with pytest.raises(failure):
        await asyncio.wait_for(post(http, "/v1/completions", {"prompt": "x"}), 0.5)


async def test_the_process_announces_itself_and_drains_on_sigterm():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers.cli", "engine", "--port", "0", "--events-port", "0"),
        *("--replay-port", "0", "--speed-up", "2", "--model-name", "tiny", "alias"),
        *("--data-parallel-size", "2", "--lora", "extra", "--faults", '{"events": {"lose": 0.5}}'),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(3 * DEADLINE_S):
            assert process.stdout is not None
            ready = msgspec.json.decode(await process.stdout.readline())
            assert set(ready) == {"url", "events_url", "replay_url", "model", "pid", "ranks"}
            assert (ready["model"], ready["pid"], len(ready["ranks"])) == ("tiny", process.pid, 2)
            async with aiohttp.ClientSession(base_url=ready["url"]) as http:
                body = {"prompt": "x", "max_tokens": 40, "ignore_eos": True, "model": "alias"}
                request = asyncio.create_task(post(http, "/v1/completions", body))

                async def running():
                    async with http.get("/load") as reply:
                        return (await reply.json())["server_load"]

                await eventually(running, "the start")
                process.send_signal(signal.SIGTERM)
                assert (await request)["usage"]["completion_tokens"] == 40
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_settings_that_contradict_each_other_end_the_process_with_words():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers.cli", "engine", "--port", "0", "--num-blocks", "4"),
        *("--max-model-len", "4096"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(3 * DEADLINE_S):
        out, errors = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert b"max_model_len=4096" in errors
