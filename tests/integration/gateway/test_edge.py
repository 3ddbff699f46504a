"""What clients and operators see at the gateway's edge."""

import json
from io import BytesIO

import pytest

from tests.support.engines import chat_body, plain_engine
from tests.support.gateway import gateway
from tests.support.processes import until

CHAT = "/v1/chat/completions"


@pytest.fixture
async def edge():
    async with plain_engine() as engine, gateway([{"id": "r1", "url": engine.url}]) as served:
        yield served, engine


@pytest.fixture
async def served(edge):
    return edge[0]


@pytest.fixture
async def engine(edge):
    return edge[1]


async def error_of(response):
    error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return response.status, error["code"], error["message"]


async def test_a_reply_names_the_replica_the_match_and_the_reason(served):
    async with served.client.post(CHAT, data=chat_body()) as response:
        assert response.status == 200
        assert response.headers["x-warmgate-replica"] == "r1"
        assert response.headers["x-warmgate-reason"] == "cold"
        assert response.headers["x-warmgate-matched-blocks"] == "0"


async def test_decision_headers_can_be_switched_off():
    async with (
        plain_engine() as engine,
        gateway([{"id": "r1", "url": engine.url}], listen={"decision_headers": False}) as served,
        served.client.post(CHAT, data=chat_body()) as response,
    ):
        assert not [name for name in response.headers if name.lower().startswith("x-warmgate")]


async def test_the_body_arrives_as_the_client_wrote_it(served, engine):
    body = b'{"model" : "m",\n "messages":[{"role":"user","content":"\\u00e9"}],  "new_field": 1e2}'
    async with served.client.post(CHAT, data=body) as response:
        assert response.status == 200
    assert engine.requests[0][1] == body


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'{"messages": []}', 400, "invalid_request"),
        (b'{"model": "m"}', 400, "invalid_request"),
        (chat_body("absent"), 404, "model_not_found"),
    ],
)
async def test_a_request_that_cannot_be_routed_is_refused_in_openai_shape(
    served, engine, body, status, code
):
    async with served.client.post(CHAT, data=body) as response:
        assert (await error_of(response))[:2] == (status, code)
    assert engine.requests == []


async def test_a_body_beyond_the_limit_is_refused_with_the_setting_to_change(engine):
    replicas = [{"id": "r1", "url": engine.url}]
    async with gateway(replicas, listen={"max_body_bytes": 2048}) as small:
        async with small.client.post(CHAT, data=chat_body(pad="x" * 4096)) as response:
            status, code, message = await error_of(response)
        assert (status, code) == (413, "payload_too_large")
        assert "listen.max_body_bytes" in message
        async with small.client.get("/metrics") as response:
            text = await response.text()
        assert 'warmgate_requests_total{model="unknown",outcome="rejected"} 1.0' in text


async def test_a_body_of_many_megabytes_passes(served):
    body = chat_body(pad="x" * (20 * 2**20))
    async with served.client.post(CHAT, data=BytesIO(body)) as response:
        assert (await response.json())["echo"] == len(body)


async def test_an_unknown_path_and_a_wrong_method_say_what_to_do(served):
    async with served.client.get("/v2/chat") as response:
        assert (await error_of(response))[:2] == (404, "not_found")
    async with served.client.get(CHAT) as response:
        status, code, message = await error_of(response)
        assert (status, code) == (405, "method_not_allowed")
        assert "POST" in message


async def test_without_a_replica_the_gateway_lives_but_is_not_ready():
    async with gateway([{"id": "r1", "url": "http://127.0.0.1:1"}], is_ready=False) as served:
        await until(lambda: status_is(served, "/readyz", 503))
        assert await status_is(served, "/healthz", 200)
        async with served.client.post(CHAT, data=chat_body()) as response:
            assert (await error_of(response))[:2] == (503, "no_replica_available")
            assert response.headers["retry-after"] == "1"


async def test_one_replica_that_is_down_does_not_keep_the_gateway_from_serving():
    async with plain_engine() as engine:
        replicas = [{"id": "r1", "url": engine.url}, {"id": "r2", "url": "http://127.0.0.1:1"}]
        async with (
            gateway(replicas) as served,
            served.client.post(CHAT, data=chat_body()) as response,
        ):
            assert response.headers["x-warmgate-replica"] == "r1"


async def test_models_are_listed_in_the_engines_own_words(served):
    async with served.client.get("/v1/models") as response:
        rows = (await response.json())["data"]
    assert rows == [{"id": "m", "object": "model", "max_model_len": 4096, "parent": None}]


async def test_a_sane_request_id_of_the_client_comes_back_and_an_odd_one_does_not(served):
    for given, is_kept in (("abc-1", True), ("x" * 500, False)):
        headers = {"x-request-id": given}
        async with served.client.post(CHAT, data=chat_body(), headers=headers) as response:
            assert (response.headers["x-request-id"] == given) is is_kept


async def test_every_request_is_counted_once_by_how_it_ended(served):
    for body in (chat_body(), b"{", chat_body("absent")):
        async with served.client.post(CHAT, data=body) as response:
            await response.read()
    async with served.client.get("/metrics") as response:
        text = await response.text()
    assert 'warmgate_requests_total{model="m",outcome="ok"} 1.0' in text
    assert 'warmgate_requests_total{model="unknown",outcome="rejected"} 2.0' in text
    assert 'warmgate_prompt_tokens_total{model="m"} 7.0' in text
    assert 'warmgate_replica_in_flight{replica="r1"} 0.0' in text


async def test_debug_shows_each_replica_as_the_router_sees_it(served):
    async with served.client.get("/debug/replicas") as response:
        row = json.loads(await response.text())["replicas"][0]
    assert row["id"] == "r1"
    assert row["is_healthy"] is True
    assert row["trust"] == "approximate"
    assert row["models"] == ["m"]


async def status_is(served, path, status):
    async with served.client.get(path) as response:
        return response.status == status
