import asyncio
import json
import random
from array import array
from collections.abc import Sequence

import aiohttp
import pytest
from aiohttp import web

from router.tokens import (
    LocalTokenizer,
    Reason,
    RemoteLimits,
    RemoteTokenizer,
    TokenizeFailed,
)
from tests.support.tokens import (
    SCRIPTS,
    assistant,
    chat,
    completion,
    generation,
    system,
    unpack,
    user,
    write_model_dir,
)

PATIENT = RemoteLimits(deadline_s=5)


class Replica:
    """Answers POST /tokenize as vLLM does; `answer` takes over where a test needs another one."""

    def __init__(self, tokenizer: LocalTokenizer) -> None:
        self.tokenizer = tokenizer
        self.asked: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: web.Response | None = None
        self.silent = asyncio.Event()

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        if self.silent.is_set():
            await asyncio.Event().wait()
        if self.answer is not None:
            return self.answer
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        ids = unpack(await self.tokenizer.tokenize(generation(path, **body)))
        return web.json_response({"count": len(ids), "max_model_len": 8192, "tokens": ids})


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return LocalTokenizer.load(write_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture
def replica(local):
    return Replica(local)


@pytest.fixture
async def url(replica, aiohttp_server):
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/engine/tokenize", replica.tokenize)
    server = await aiohttp_server(app)
    return str(server.make_url("/engine"))


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


def remote(
    session: aiohttp.ClientSession, *urls: str, limits: RemoteLimits = PATIENT
) -> RemoteTokenizer:
    def for_model(model: str) -> Sequence[str]:
        return urls if model == "m" else ()

    return RemoteTokenizer(session, for_model, rng=random.Random(1), limits=limits)


async def reason_of(tokenizer: RemoteTokenizer, asked) -> Reason:
    with pytest.raises(TokenizeFailed) as caught:
        await tokenizer.tokenize(asked)
    return caught.value.reason


TOOLS = [{"type": "function", "function": {"name": "f"}}]

ASKS = {
    "chat": chat([system("Be brief."), user("Hi")]),
    "scripts": chat([user(words) for words in SCRIPTS.values()]),
    "parts": chat([user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]),
    "tools": chat([user("Hi")], tools=TOOLS),
    "prefill": chat(
        [user("Hi"), assistant("It")], add_generation_prompt=False, continue_final_message=True
    ),
    "no prompt": chat([user("Hi")], add_generation_prompt="false"),
    "text": completion("The quick brown fox"),
    "texts": completion(["The quick", "brown fox"]),
    "ids": completion([1, 2, 3]),
    "plain text": completion("fox", add_special_tokens=False),
    "cut": completion("The quick brown fox", truncate_prompt_tokens=3, truncation_side="left"),
    "cut chat": chat([user("Hi")], truncate_prompt_tokens=3),
    "cut ids": completion([1, 2, 3], truncate_prompt_tokens=2),
}


@pytest.mark.parametrize("name", ASKS)
async def test_remote_ids_are_the_local_ones(name, session, url, local):
    asked = ASKS[name]
    assert await remote(session, url).tokenize(asked) == await local.tokenize(asked)


async def test_the_ask_holds_what_changes_the_ids_and_nothing_else(session, url, replica):
    asked = chat(
        [user("Hi")],
        tools=TOOLS,
        documents=[{"title": "t"}],
        reasoning_effort="low",
        temperature=1,
        stream=True,
        cache_salt="s",
    )
    await remote(session, url).tokenize(asked)
    assert replica.asked == [
        {
            "model": "m",
            "messages": [user("Hi")],
            "tools": TOOLS,
            "add_generation_prompt": True,
            "continue_final_message": False,
            "add_special_tokens": False,
            "chat_template_kwargs": {
                "documents": [{"title": "t"}],
                "reasoning_effort": "low",
                "enable_thinking": True,
            },
        }
    ]


async def test_a_clients_template_is_the_replicas_to_judge(session, url, replica):
    replica.answer = web.json_response({"error": {}}, status=400)
    asked = chat([user("Hi")], chat_template="{{ messages }}")
    assert await reason_of(remote(session, url), asked) is Reason.INVALID
    assert replica.asked[0]["chat_template"] == "{{ messages }}"


async def test_equal_prompts_are_asked_for_once(session, url, replica):
    tokenizer = remote(session, url)
    first = await tokenizer.tokenize(chat([user("Hi")], temperature=0))
    assert await tokenizer.tokenize(chat([user("Hi")], temperature=1, stream=True)) == first
    assert await tokenizer.tokenize(chat([user("Ho")])) != first
    assert len(replica.asked) == 2


async def test_ids_need_no_replica(session):
    assert unpack(await remote(session).tokenize(completion([4, 5]))) == [4, 5]


async def test_images_are_not_asked_for(session, url, replica):
    part = {"type": "image_url", "image_url": {"url": "http://replica.test/x.png"}}
    assert await reason_of(remote(session, url), chat([user([part])])) is Reason.MULTIMODAL
    assert replica.asked == []


async def test_a_cut_that_depends_on_bos_is_not_guessed(session, url):
    asked = completion("The quick brown fox", truncate_prompt_tokens=3)
    assert await reason_of(remote(session, url), asked) is Reason.UNSUPPORTED


async def test_a_model_that_nobody_serves_is_unavailable(session, url):
    asked = chat([user("Hi")], model="other")
    assert await reason_of(remote(session, url), asked) is Reason.UNAVAILABLE


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (400, Reason.INVALID),
        (413, Reason.INVALID),
        (422, Reason.INVALID),
        (302, Reason.UNAVAILABLE),
        (401, Reason.UNAVAILABLE),
        (404, Reason.UNAVAILABLE),
        (500, Reason.UNAVAILABLE),
        (503, Reason.UNAVAILABLE),
    ],
)
async def test_refusals_and_failures(session, url, replica, status, reason):
    replica.answer = web.Response(status=status, headers={"location": "http://replica.test/"})
    assert await reason_of(remote(session, url), chat([user("Hi")])) is reason


@pytest.mark.parametrize(
    "answer", ["", "{}", "no json", '{"tokens": [-1]}', '{"tokens": ["a"]}', '{"tokens": null}']
)
async def test_an_answer_without_ids_is_unavailable(session, url, replica, answer):
    replica.answer = web.Response(text=answer)
    assert await reason_of(remote(session, url), chat([user("Hi")])) is Reason.UNAVAILABLE


async def test_an_answer_is_read_only_up_to_its_limit(session, url, replica):
    replica.answer = web.Response(text=json.dumps({"tokens": [1] * 10_000}))
    limits = RemoteLimits(deadline_s=5, max_answer_bytes=1000)
    tokenizer = remote(session, url, limits=limits)
    assert await reason_of(tokenizer, chat([user("Hi")])) is Reason.TOO_LARGE


async def test_a_refused_connection_is_unavailable(session, unused_tcp_port):
    tokenizer = remote(session, f"http://127.0.0.1:{unused_tcp_port}")
    assert await reason_of(tokenizer, chat([user("Hi")])) is Reason.UNAVAILABLE


async def test_silence_ends_at_the_deadline(session, url, replica):
    replica.silent.set()
    tokenizer = remote(session, url, limits=RemoteLimits(deadline_s=0.05))
    assert await reason_of(tokenizer, chat([user("Hi")])) is Reason.TIMEOUT


async def test_too_many_at_once_are_busy_and_room_comes_back(session, url, replica):
    replica.silent.set()
    limits = RemoteLimits(deadline_s=5, max_pending=2)
    tokenizer = remote(session, url, limits=limits)
    waiting = [asyncio.create_task(tokenizer.tokenize(completion(f"{i}"))) for i in range(2)]
    async with asyncio.timeout(5):
        while len(replica.asked) < 2:  # noqa: ASYNC110 - the other side has no event
            await asyncio.sleep(0.001)
    assert await reason_of(tokenizer, completion("2")) is Reason.BUSY
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    replica.silent.clear()
    assert await tokenizer.tokenize(completion("2")) != b""


async def test_failures_are_not_remembered(session, url, replica, local):
    tokenizer = remote(session, url)
    replica.answer = web.Response(status=503)
    assert await reason_of(tokenizer, chat([user("Hi")])) is Reason.UNAVAILABLE
    replica.answer = None
    asked = chat([user("Hi")])
    assert await tokenizer.tokenize(asked) == await local.tokenize(asked)


async def test_the_replicas_key_is_sent(session, url, replica):
    tokenizer = RemoteTokenizer(
        session,
        lambda model: [url],
        rng=random.Random(1),
        headers={"authorization": "Bearer replica-key"},
    )
    await tokenizer.tokenize(chat([user("Hi")]))
    assert replica.headers[0]["Authorization"] == "Bearer replica-key"


async def test_asks_spread_over_the_replicas(session, aiohttp_server):
    counts = [0, 0]

    def counting(number: int):
        async def tokenize(request: web.Request) -> web.Response:
            counts[number] += 1
            return web.json_response({"tokens": [number]})

        return tokenize

    urls = []
    for number in range(2):
        app = web.Application()
        app.router.add_post("/tokenize", counting(number))
        urls.append(str((await aiohttp_server(app)).make_url("")).rstrip("/"))
    tokenizer = remote(session, *urls)
    for number in range(20):
        ids = await tokenizer.tokenize(completion(str(number)))
        assert array("I", ids)[0] in (0, 1)
    assert min(counts) >= 4
