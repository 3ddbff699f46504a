"""The engine over HTTP: shapes of replies as vLLM's, caching as clients see it, what is refused."""

import asyncio
import json

import aiohttp
import pytest

from router.blocks import hash_blocks, prefix_seed
from tests.support.engine import eventually, post, stream, tokens_of
from workers.engine import EngineOptions, run_engine
from workers.engine.clock import WallClock

FAST = EngineOptions(speed_up=50.0, adapters=("lora-a",), max_model_len=2048)
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def engine():
    async with run_engine(FAST) as running:
        yield running


@pytest.fixture
async def http(engine):
    async with aiohttp.ClientSession(base_url=engine.url) as session:
        yield session


async def complete(http, prompt, **fields):
    return await post(http, "/v1/completions", {"prompt": prompt, "max_tokens": 4, **fields})


def cached_tokens(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_a_chat_has_vllms_fields(http):
    reply = await post(http, "/v1/chat/completions", {**HELLO, "max_tokens": 3})
    assert list(reply) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint"),
        *("usage", "prompt_logprobs", "prompt_token_ids", "prompt_text"),
        *("kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    assert reply["object"] == "chat.completion"
    [choice] = reply["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    usage = reply["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3
    assert cached_tokens(reply) == 0


async def test_a_completion_has_vllms_fields(http):
    reply = await complete(http, "Hello there", return_token_ids=True)
    assert list(reply) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint"),
        *("usage", "kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    [choice] = reply["choices"]
    assert len(choice["token_ids"]) == 4
    tokens = await post(http, "/tokenize", {"prompt": "Hello there"})
    assert choice["prompt_token_ids"] == tokens["tokens"]
    text = await post(http, "/detokenize", {"tokens": choice["token_ids"]})
    assert text["prompt"] == choice["text"]


async def test_a_chat_streams_as_vllm_does(http):
    body = {**HELLO, "max_tokens": 3, "stream_options": {"include_usage": True}}
    whole = await post(http, "/v1/chat/completions", {**HELLO, "max_tokens": 3})
    chunks = await stream(http, "/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-1]]
    assert "".join(texts) == whole["choices"][0]["message"]["content"]
    assert all(texts)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None, None, None, "length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}


async def test_each_event_is_one_http_chunk_and_headers_come_before_the_first_token():
    slow = EngineOptions(speed_up=1.0)
    async with run_engine(slow) as running:
        host, port = running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"prompt": "x " * 1500, "max_tokens": 3, "stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        async with asyncio.timeout(10):
            loop = asyncio.get_running_loop()
            headers = await reader.readuntil(b"\r\n\r\n")
            arrived_s = loop.time()
            rest = await reader.read()
        writer.close()
        waited_s = loop.time() - arrived_s
    assert b"200 OK" in headers
    assert b"text/event-stream" in headers
    assert waited_s > 0.2, "the prefill takes 0.3 s; the headers do not wait for it"
    chunks, left = [], rest
    while left:
        size, left = left.split(b"\r\n", 1)
        chunk, left = left[: int(size, 16)], left[int(size, 16) + 2 :]
        chunks.append(chunk)
    assert len(chunks) == 5
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks[:-1])
    assert chunks[3] == b"data: [DONE]\n\n"
    assert chunks[4] == b""


async def test_a_stream_with_ids_and_running_usage_carries_them_in_each_chunk(http):
    body = {
        "prompt": list(range(300, 320)),
        "max_tokens": 3,
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    chunks = await stream(http, "/v1/completions", body)
    ids = [chunk["choices"][0]["token_ids"] for chunk in chunks[:-1]]
    assert [len(some) for some in ids] == [1, 1, 1]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == body["prompt"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


async def test_96_tokens_sent_again_hit_64_with_blocks_of_32():
    async with (
        run_engine(EngineOptions(speed_up=50.0, block_size=32)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        prompt = list(range(1000, 1096))
        assert [cached_tokens(await complete(http, prompt)) for _ in range(3)] == [0, 64, 64]


async def test_the_cache_endpoint_names_prefixes_as_the_router_does(http, engine):
    prompt = tokens_of(500, 40)
    await complete(http, prompt.tolist(), max_tokens=1)
    await complete(http, prompt.tolist(), max_tokens=1, cache_salt="tenant")
    await complete(http, prompt.tolist(), max_tokens=1, model="lora-a")
    wanted = {
        key
        for seed in (prefix_seed(), prefix_seed("tenant"), prefix_seed(adapter="lora-a"))
        for key in hash_blocks(prompt, 16, seed)
    }
    async with http.get("/cache") as reply:
        ranks = await reply.json()
    assert {int(key) for key in ranks["0"]["blocks"]} == wanted == set(engine.cached())
    assert set(ranks["0"]["blocks"].values()) == {1}
    assert ranks["0"]["used_blocks"] == 0


async def test_salts_and_adapters_do_not_share(http):
    prompt = list(range(700, 740))
    hits = [
        cached_tokens(await complete(http, prompt, **fields))
        for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"model": "lora-a"})
    ]
    assert hits == [0, 0, 0, 0]
    assert cached_tokens(await complete(http, prompt, cache_salt="a")) == 32


async def test_the_answer_is_cached_for_the_next_turn(http):
    turns = [{"role": "user", "content": "Tell me of the sea. " * 10}]
    body = {"messages": turns, "max_tokens": 100, "ignore_eos": True}
    first = await post(http, "/v1/chat/completions", body)
    turns.append({"role": "assistant", "content": first["choices"][0]["message"]["content"]})
    turns.append({"role": "user", "content": "Go on."})
    second = await post(http, "/v1/chat/completions", body)
    computed = first["usage"]["total_tokens"] - 1
    assert cached_tokens(second) == computed // 16 * 16


async def test_the_second_choice_hits_the_first_ones_prompt(http):
    prompt = list(range(900, 940))
    reply = await complete(http, prompt, n=2)
    assert cached_tokens(reply) == 32
    assert reply["usage"]["prompt_tokens"] == 40
    assert reply["usage"]["completion_tokens"] == 8
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert reply["choices"][0]["text"] != reply["choices"][1]["text"]


async def test_choices_of_a_stream_carry_their_index(http):
    body = {**HELLO, "n": 2, "max_tokens": 3}
    chunks = await stream(http, "/v1/chat/completions", body)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:2]] == [0, 1]
    assert sorted(chunk["choices"][0]["index"] for chunk in chunks[2:]) == [0, 0, 0, 1, 1, 1]


async def test_a_list_of_prompts_gets_a_choice_each(http):
    reply = await complete(http, ["One two", "Red green"])
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    ids = await complete(http, [[5, 6, 7], [8, 9]])
    assert ids["usage"]["prompt_tokens"] == 5


async def test_a_stop_string_ends_the_answer_and_is_named(http):
    plain = await complete(http, "Hello", max_tokens=30, ignore_eos=True)
    words = plain["choices"][0]["text"].split()
    body = {"max_tokens": 30, "ignore_eos": True, "stop": ["never said", words[4]]}
    whole = await complete(http, "Hello", **body)
    [choice] = whole["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", words[4])
    assert plain["choices"][0]["text"].startswith(choice["text"])
    assert words[4] not in choice["text"]
    chunks = await stream(http, "/v1/completions", {"prompt": "Hello", **body})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"][0]["stop_reason"] == words[4]


async def test_a_stop_token_ends_the_answer_and_is_named(http):
    plain = await complete(http, "Hello", max_tokens=9, return_token_ids=True)
    token = plain["choices"][0]["token_ids"][5]
    reply = await complete(http, "Hello", max_tokens=9, stop_token_ids=[token])
    [choice] = reply["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token)
    assert reply["usage"]["completion_tokens"] <= 6


async def test_answers_end_by_themselves_unless_told_not_to():
    options = EngineOptions(speed_up=100.0, answer_tokens=(5, 9))
    async with (
        run_engine(options) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        reply = await post(http, "/v1/chat/completions", HELLO)
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["choices"][0]["stop_reason"] is None
        assert 6 <= reply["usage"]["completion_tokens"] <= 10
        body = {**HELLO, "max_tokens": 30, "ignore_eos": True}
        reply = await post(http, "/v1/chat/completions", body)
        assert reply["usage"]["completion_tokens"] == 30
        chunks = await stream(http, "/v1/chat/completions", HELLO)
        assert chunks[-1]["choices"][0]["delta"] == {"content": ""}
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_request_id_becomes_the_replys(http):
    reply = await post(http, "/v1/completions", {"prompt": "x"}, **{"X-Request-Id": "abc"})
    assert reply["id"] == "cmpl-abc"


async def test_a_core_that_dies_takes_its_clients_along_and_shows_in_health():
    class BrokenClock(WallClock):
        async def sleep_until(self, moment):
            raise RuntimeError("time stands still")

    async with (
        run_engine(FAST, BrokenClock()) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        with pytest.raises(aiohttp.ClientError):
            await complete(http, list(range(40)), max_tokens=50)
        async with http.get("/health") as reply:
            assert reply.status == 503
        async with http.post("/v1/completions", json={"prompt": "x"}) as reply:
            assert reply.status == 500


@pytest.mark.parametrize("speed_up", [0.5])
async def test_a_client_that_leaves_frees_its_blocks(speed_up):
    async with (
        run_engine(EngineOptions(speed_up=speed_up)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        for streams in (True, False):
            body = {**HELLO, "max_tokens": 4000, "ignore_eos": True, "stream": streams}
            request = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            core = running.engine.ranks[0].core
            await eventually(lambda core=core: core.pool.used_count > 2, "the third block")
            if streams:
                (await request).close()
            request.cancel()
            await eventually(lambda core=core: core.pool.used_count == 0, "the release")
            assert core.load == 0
            assert running.cached(), "what was computed stays cached"


REFUSALS = [
    ("/v1/completions", {"prompt": "x", "model": "nope"}, 404, "does not exist"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 5000}, 400, "max_tokens=5000 cannot be"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 2048}, 400, "for a total of 20"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "at least 1"),
    ("/v1/completions", {"prompt": [5] * 3000}, 400, "contains 3000 input tokens"),
    ("/v1/completions", {"prompt": ""}, 400, "cannot be empty"),
    ("/v1/completions", {"prompt": {"a": 1}}, 400, "must be a string"),
    ("/v1/completions", {"prompt": [-1]}, 400, "between 0 and"),
    ("/v1/completions", {"prompt": "x", "cache_salt": "a/b"}, 400, "cache_salt"),
    ("/v1/completions", {"prompt": "x", "logprobs": 2}, 400, "no logits"),
    ("/v1/completions", {"prompt": "x", "echo": True}, 400, "echo"),
    ("/v1/completions", {"prompt": "x", "n": 0}, 400, "n"),
    ("/v1/completions", {"prompt": "x", "stream_options": {}}, 400, "stream=True"),
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/chat/completions", {}, 400, "messages"),
    ("/v1/chat/completions", {"messages": []}, 400, ""),
    ("/v1/chat/completions", {"messages": [{"role": "wizard", "content": ""}]}, 400, "role"),
]


@pytest.mark.parametrize(("path", "body", "status", "words"), REFUSALS)
async def test_what_vllm_refuses_is_refused_in_its_shape(http, path, body, status, words):
    async with http.post(path, json=body) as reply:
        assert reply.status == status
        error = (await reply.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert words in error["message"]


async def test_a_body_that_is_no_json_is_refused(http):
    async with http.post("/v1/chat/completions", data=b"{") as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["type"] == "Bad Request"


async def test_more_waiting_requests_than_allowed_get_503():
    options = EngineOptions(max_num_seqs=1, max_num_queued_reqs=1, speed_up=0.2)
    async with (
        run_engine(options) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        body = {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
        core = running.engine.ranks[0].core
        replies = [await http.post("/v1/completions", json=body)]
        await eventually(lambda: core.waiting == 0, "the first one's start")
        replies += [await http.post("/v1/completions", json=body) for _ in range(2)]
        assert [reply.status for reply in replies] == [200, 200, 503]
        for reply in replies:
            reply.close()


async def test_models_tokens_and_the_rest_answer_as_vllm(http, engine):
    async with http.get("/v1/models") as reply:
        models = (await reply.json())["data"]
    assert [(model["id"], model["parent"]) for model in models] == [
        (engine.model, None),
        ("lora-a", engine.model),
    ]
    assert models[0]["max_model_len"] == 2048
    async with http.get("/kv_event_sources") as reply:
        sources = await reply.json()
    assert sources["0"]["endpoint"] == engine.events_url
    assert sources["0"]["replay_endpoint"] == engine.replay_url
    chat = await post(http, "/tokenize", {**HELLO, "return_token_strs": True})
    assert chat["count"] == len(chat["tokens"]) == len(chat["token_strs"])
    assert chat["token_strs"][0] == "<|im_start|>"
    reply_ = await post(http, "/v1/chat/completions", {**HELLO, "max_tokens": 1})
    assert reply_["usage"]["prompt_tokens"] == chat["count"]
    for path in ("/health", "/ping", "/version", "/load"):
        async with http.get(path) as reply:
            assert reply.status == 200


async def test_metrics_have_vllms_names_and_count(http):
    prompt = list(range(100, 150))
    await complete(http, prompt)
    await complete(http, prompt)
    async with http.get("/metrics") as reply:
        assert reply.content_type == "text/plain"
        text = await reply.text()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="warmgate-tiny"}'
    assert float(samples[f"vllm:prefix_cache_queries_total{labels}"]) == 100
    assert float(samples[f"vllm:prefix_cache_hits_total{labels}"]) == 48
    assert float(samples[f"vllm:generation_tokens_total{labels}"]) == 8
    assert float(samples[f"vllm:num_requests_running{labels}"]) == 0
    assert float(samples[f"vllm:kv_cache_usage_perc{labels}"]) == 0
    assert float(samples[f"vllm:time_to_first_token_seconds_count{labels}"]) == 2
    assert float(samples[f"vllm:inter_token_latency_seconds_count{labels}"]) == 6
    [info] = [name for name in samples if name.startswith("vllm:cache_config_info")]
    assert 'block_size="16"' in info
    assert 'kv_cache_size_tokens="16384"' in info


async def test_a_reset_empties_the_cache(http, engine):
    await complete(http, list(range(100, 150)))
    assert engine.cached()
    assert await post(http, "/reset_prefix_cache", {}) == {"success": True}
    assert not engine.cached()
    assert cached_tokens(await complete(http, list(range(100, 150)))) == 0


async def test_ranks_have_their_own_cache_and_can_be_asked_for():
    options = EngineOptions(speed_up=50.0, data_parallel_size=2)
    async with (
        run_engine(options) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        body = {"prompt": list(range(100, 150)), "max_tokens": 1}
        for rank in ("0", "1"):
            headers = {"X-data-parallel-rank": rank}
            first = await post(http, "/v1/completions", body, **headers)
            again = await post(http, "/v1/completions", body, **headers)
            assert (cached_tokens(first), cached_tokens(again)) == (0, 48)
        assert running.cached(0) == running.cached(1)
        assert len(set(running.events_urls + running.replay_urls)) == 4
        headers = {"X-data-parallel-rank": "2"}
        async with http.post("/v1/completions", json=body, headers=headers) as reply:
            assert reply.status == 400
            assert "out of range [0, 2)" in await reply.text()


async def test_while_draining_new_requests_are_aborted_and_old_ones_end():
    async with (
        run_engine(EngineOptions(speed_up=2.0)) as running,
        aiohttp.ClientSession(base_url=running.url) as http,
    ):
        body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
        old = asyncio.create_task(post(http, "/v1/completions", body))
        await eventually(lambda: running.engine.load, "the start")
        drained = asyncio.create_task(running.engine.drain(10.0))
        await eventually(lambda: running.engine.draining)
        new = await post(http, "/v1/completions", body)
        assert new["choices"][0] | {"finish_reason": "abort", "text": ""} == new["choices"][0]
        chunks = await stream(http, "/v1/chat/completions", HELLO)
        assert chunks[-1]["choices"][0]["finish_reason"] == "abort"
        assert (await old)["usage"]["completion_tokens"] == 60
        assert await drained
