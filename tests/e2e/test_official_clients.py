"""OpenAI's and Anthropic's own Python clients, unchanged, against the gateway."""

import asyncio

import pytest

from tests.support.chat_engine import WORDS, chat_engine
from tests.support.gateway import gateway
from tests.support.processes import until

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

TEXT = "".join(WORDS)
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
]


@pytest.fixture
async def world():
    async with (
        chat_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], tokens={"remote": False}) as served,
    ):
        yield engine, served


@pytest.fixture
async def client(world):
    url = world[1].url + "/v1"
    async with openai.AsyncOpenAI(api_key="key", base_url=url, max_retries=0) as client:
        yield client


def say(text):
    return [{"role": "user", "content": text}]


async def test_chat(client):
    got = await client.chat.completions.create(model="m", messages=say("hi"))
    assert got.choices[0].message.content == TEXT
    assert got.usage.total_tokens == 12


async def test_chat_streamed(client):
    stream = await client.chat.completions.create(model="m", messages=say("hi"), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage.prompt_tokens == 7


async def test_completions_plain_and_streamed(client):
    got = await client.completions.create(model="m", prompt="hi")
    assert got.choices[0].text == TEXT
    stream = await client.completions.create(model="m", prompt="hi", stream=True)
    assert "".join([c.choices[0].text async for c in stream if c.choices]) == TEXT


@pytest.mark.parametrize("is_stream", [False, True])
async def test_tools(client, is_stream):
    got = await client.chat.completions.create(
        model="m", messages=say("add"), tools=TOOLS, stream=is_stream
    )
    if is_stream:
        chunks = [chunk async for chunk in got if chunk.choices]
        first = chunks[0].choices[0].delta
    else:
        first = got.choices[0].message
    assert first.tool_calls[0].function.name == "add"


async def test_embeddings_and_models(client):
    got = await client.embeddings.create(model="m", input="hi", encoding_format="float")
    assert got.data[0].embedding == [0.5, 0.25]
    assert [model.id async for model in client.models.list()] == ["m"]


async def test_raw_responses_show_our_headers(client):
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=say("hi"))
    assert raw.headers["x-warmgate-replica"] == "r1"
    assert raw.request_id == raw.headers["x-request-id"]
    assert raw.parse().choices[0].message.content == TEXT


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (409, "ConflictError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "InternalServerError"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_engines_error_arrives_as_the_right_exception(client, status, kind, is_stream):
    with pytest.raises(getattr(openai, kind)) as caught:
        await client.chat.completions.create(
            model="m", messages=say(f"status {status}"), stream=is_stream
        )
    assert caught.value.status_code == status
    assert caught.value.body["message"] == f"engine says {status}"


async def test_our_own_errors_arrive_as_the_right_exceptions(client, world):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="absent", messages=say("hi"))
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=None)
    assert (caught.value.code, caught.value.type) == ("invalid_request", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        await client.files.list()
    world[1].runtime.pool.mark_down("r1", "test")
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="m", messages=say("hi"))
    assert caught.value.status_code == 503


async def test_a_stream_that_dies_raises_and_is_never_taken_for_whole(client):
    stream = await client.chat.completions.create(model="m", messages=say("die"), stream=True)
    words: list[str] = []

    async def read():
        async for chunk in stream:
            words.extend(choice.delta.content for choice in chunk.choices)

    with pytest.raises(openai.APIError) as caught:
        await read()
    assert words == WORDS[:3]
    assert caught.value.code == "replica_failed"


async def test_a_timeout_is_a_timeout_and_ends_the_engines_work(client, world):
    with pytest.raises(openai.APITimeoutError):
        await client.chat.completions.create(model="m", messages=say("hang"), timeout=0.3)
    await until(lambda: _is(world[0].in_flight == 0))
    assert world[1].runtime.in_flight() == 0


async def test_the_synchronous_client_works_too(world):
    def ask():
        with openai.OpenAI(api_key="key", base_url=world[1].url + "/v1") as client:
            return client.chat.completions.create(model="m", messages=say("hi"))

    assert (await asyncio.to_thread(ask)).choices[0].message.content == TEXT


@pytest.fixture
async def claude(world):
    url = world[1].url
    async with anthropic.AsyncAnthropic(api_key="key", base_url=url, max_retries=0) as client:
        yield client


async def test_messages_plain_and_streamed(claude):
    asked = {"model": "m", "max_tokens": 9, "messages": say("hi")}
    got = await claude.messages.create(**asked)
    assert got.content[0].text == TEXT
    async with claude.messages.stream(**asked) as stream:
        assert "".join([text async for text in stream.text_stream]) == TEXT


async def test_messages_that_die_raise(claude):
    asked = {"model": "m", "max_tokens": 9, "messages": say("die")}
    words: list[str] = []

    async def read():
        async with claude.messages.stream(**asked) as stream:
            async for text in stream.text_stream:
                words.append(text)  # noqa: PERF401  what came before the error counts

    with pytest.raises(anthropic.APIError):
        await read()
    assert words == WORDS[:2]


@pytest.mark.parametrize(("status", "kind"), [(400, "BadRequestError"), (429, "RateLimitError")])
async def test_errors_of_messages_arrive_as_the_right_exceptions(claude, status, kind):
    with pytest.raises(getattr(anthropic, kind)):
        await claude.messages.create(model="m", max_tokens=9, messages=say(f"status {status}"))


async def _is(claim):
    return claim
