"""Each error of ours, as OpenAI's and Anthropic's own Python clients raise it.

Where the gateway can be brought to it in a moment the error is provoked; every one is also rendered
as the gateway renders it and read by both clients.
"""

from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from router import errors
from router.gateway.replies import error_response
from tests.support.chat_engine import chat_engine
from tests.support.gateway import gateway
from tests.support.proxy import Engine, always, replies
from tests.support.tenants import away_from_the_minute, key_file

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

OPENAI = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    502: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
}
"""Others have no class of their own there: APIStatusError."""
ANTHROPIC = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    429: anthropic.RateLimitError,
}
MODELS = [{"id": "m", "object": "model"}]


def leaves(kind=errors.RouterError):
    """Every error that a client can be told."""
    return [kind, *(leaf for below in kind.__subclasses__() for leaf in leaves(below))]


def made(kind):
    if kind is errors.RateLimited:
        return kind("too much", retry_after_s=3.0)
    return kind("what happened", retry_after_s=3.0)


@asynccontextmanager
async def rendering(kind):
    """A server that answers everything with this error."""

    async def answer(request):
        return error_response(made(kind), "id-1")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def openai_at(url, key="key"):
    async with openai.AsyncOpenAI(api_key=key, base_url=url + "/v1", max_retries=0) as client:
        yield client


async def chat(client, **fields):
    messages = [{"role": "user", "content": "hi"}]
    return await client.chat.completions.create(**{"model": "m", "messages": messages, **fields})


@pytest.mark.parametrize("kind", leaves(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_openais_client_raises_each_error_as_its_own_class(kind, is_stream):
    async with rendering(kind) as url, openai_at(url) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await chat(client, stream=is_stream)
    error = caught.value
    assert type(error) is OPENAI.get(kind.status, openai.APIStatusError)
    assert (error.status_code, error.code, error.type) == (kind.status, kind.code, kind.type)
    assert error.request_id == "id-1"
    assert error.response.headers["retry-after"] == "3"


@pytest.mark.parametrize("kind", leaves(), ids=lambda kind: kind.__name__)
async def test_anthropics_client_raises_each_error_as_its_own_class(kind):
    messages = [{"role": "user", "content": "hi"}]
    async with (
        rendering(kind) as url,
        anthropic.AsyncAnthropic(api_key="key", base_url=url, max_retries=0) as client,
    ):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(model="m", max_tokens=9, messages=messages)
    expected = anthropic.InternalServerError if kind.status >= 500 else anthropic.APIStatusError
    assert isinstance(caught.value, ANTHROPIC.get(kind.status, expected))
    assert caught.value.status_code == kind.status
    assert caught.value.body["error"]["code"] == kind.code


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (replies(), errors.ReplicaUnreachable),
        (always(b"\x16\x03\x01 this is no HTTP\r\n\r\n"), errors.ReplicaFailed),
        (always(b""), errors.ReplicaTimeout),
    ],
    ids=["closes", "sends garbage", "hangs"],
)
async def test_an_engine_that_fails_is_an_internal_server_error(script, kind):
    engine = await Engine(script).start()
    url = f"http://127.0.0.1:{engine.port}"
    limits = {"first_byte_timeout_s": 0.3}
    try:
        async with gateway(
            [{"id": "r1", "url": url}], forward=limits, is_ready=False, tokens={"remote": False}
        ) as served:
            served.runtime.pool.mark_up("r1", {row["id"]: row for row in MODELS})
            async with openai_at(served.url) as client:
                with pytest.raises(openai.InternalServerError) as caught:
                    await chat(client)
    finally:
        await engine.stop()
    assert (caught.value.status_code, caught.value.code) == (kind.status, kind.code)


async def test_what_a_key_may_not_do_arrives_as_the_right_exception(tmp_path):
    await away_from_the_minute(10)
    path = key_file(
        tmp_path / "keys.yaml",
        once={"requests_per_minute": 1},
        other={"models": ["another"]},
    )
    async with chat_engine() as engine:
        replicas = [{"id": "r1", "url": engine.url}]
        tenants = {"keys_file": str(path)}
        async with gateway(replicas, tenants=tenants, tokens={"remote": False}) as served:
            async with openai_at(served.url, "nobody's") as client:
                with pytest.raises(openai.AuthenticationError):
                    await chat(client)
            async with openai_at(served.url, "key-of-other") as client:
                with pytest.raises(openai.PermissionDeniedError):
                    await chat(client)
            async with openai_at(served.url, "key-of-once") as client:
                await chat(client)
                with pytest.raises(openai.RateLimitError) as caught:
                    await chat(client)
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_a_body_that_is_too_long_and_a_method_that_is_none_are_status_errors():
    async with chat_engine() as engine:
        replicas = [{"id": "r1", "url": engine.url}]
        async with (
            gateway(replicas, listen={"max_body_bytes": 2048}, tokens={"remote": False}) as served,
            openai_at(served.url) as client,
        ):
            with pytest.raises(openai.APIStatusError) as caught:
                await chat(client, user="x" * 4096)
            assert (caught.value.status_code, caught.value.code) == (413, "payload_too_large")
            with pytest.raises(openai.APIStatusError) as caught:
                await client.get("/chat/completions", cast_to=object)
            assert (caught.value.status_code, caught.value.code) == (405, "method_not_allowed")
