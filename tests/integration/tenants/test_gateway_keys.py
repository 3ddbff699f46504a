"""Keys and bounds as clients see them."""

import json

from tests.support.faults import CHAT, FaultyEngine, works
from tests.support.gateway import gateway
from tests.support.tenants import as_tenant, away_from_the_minute, key_file

BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


async def ask(run, headers=None, body=BODY):
    async with run.client.post(CHAT, json=body, headers=headers) as response:
        return response.status, response.headers, json.loads(await response.read())


def keyed(path, **tenants):
    return {"tenants": {"keys_file": str(key_file(path / "keys", **tenants))}}


async def an_engine():
    engine = FaultyEngine(works)
    await engine.listen()
    return engine, [{"id": "r1", "url": engine.url}]


async def test_without_a_known_key_nothing_reaches_a_replica(tmp_path):
    engine, rows = await an_engine()
    sections = keyed(tmp_path, a={}, off={"disabled": True}, narrow={"models": ["other"]})
    async with gateway(rows, tokens={"remote": False}, **sections) as run:
        for headers in (None, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
            status, _, body = await ask(run, headers)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        for name in ("off", "narrow"):
            status, _, body = await ask(run, as_tenant(name))
            assert (status, body["error"]["code"]) == (403, "permission_denied")
        assert engine.asked == 0
        async with run.client.get("/v1/models") as response:
            assert response.status == 401
        assert (await ask(run, as_tenant("a")))[0] == 200
        assert (await ask(run, {"x-api-key": "key-of-a"}))[0] == 200
        async with run.client.get("/readyz") as response:
            assert response.status == 200
    await engine.stop()


async def test_beyond_its_requests_a_tenant_gets_429_and_knows_when(tmp_path):
    await away_from_the_minute(10.0)
    engine, rows = await an_engine()
    sections = keyed(tmp_path, a={"requests_per_minute": 2}, b={})
    async with gateway(rows, tokens={"remote": False}, **sections) as run:
        _, headers, _ = await ask(run, as_tenant("a"))
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1"
        await ask(run, as_tenant("a"))
        status, headers, body = await ask(run, as_tenant("a"))
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["x-ratelimit-remaining-requests"] == "0"
        status, headers, _ = await ask(run, as_tenant("b"))
        assert status == 200
        assert "x-ratelimit-limit-requests" not in headers
        text = run.runtime.metrics.exposition().decode()
        assert 'warmgate_tenant_refusals_total{bound="requests",tenant="a"} 1.0' in text
    await engine.stop()


async def test_the_usage_of_the_reply_corrects_the_guess(tmp_path):
    await away_from_the_minute(10.0)
    engine, rows = await an_engine()
    sections = keyed(tmp_path, a={"tokens_per_minute": 1000})
    async with gateway(rows, tokens={"remote": False}, **sections) as run:
        await ask(run, as_tenant("a"), {**BODY, "max_tokens": 900})
        # 7 prompt and 5 completion tokens were used, says the engine
        _, headers, _ = await ask(run, as_tenant("a"), {**BODY, "max_tokens": 100})
        remaining = int(headers["x-ratelimit-remaining-tokens"])
        guess = len(json.dumps({**BODY, "max_tokens": 100})) // 4 + 100
        assert remaining == 1000 - 12 - guess
        text = run.runtime.metrics.exposition().decode()
        assert 'warmgate_tenant_used_total{budget="tokens",tenant="a"} 24.0' in text
        assert 'warmgate_tenant_budget{budget="tokens",tenant="a"} 1000.0' in text
    await engine.stop()


async def test_a_key_ends_here_and_is_passed_on_where_we_have_none(tmp_path):
    heads = []

    async def note(connection, is_stream):
        await works(connection, is_stream)

    class Noting(FaultyEngine):
        async def _answer(self, connection):
            whole = connection.request

            async def request():
                head, body = await whole()
                heads.append(head.lower())
                return head, body

            connection.request = request
            return await super()._answer(connection)

    engine = Noting(note)
    await engine.listen()
    rows = [{"id": "r1", "url": engine.url}]
    for sections, is_seen in ((keyed(tmp_path, a={}), False), ({}, True)):
        heads.clear()
        async with gateway(rows, tokens={"remote": False}, **sections) as run:
            assert (await ask(run, as_tenant("a")))[0] == 200
        assert (b"key-of-a" in b"".join(heads)) is is_seen
    await engine.stop()
