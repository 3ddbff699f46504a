"""Engines behind https: whom we believe, what we show them, and how a mistake reads."""

from contextlib import asynccontextmanager

import pytest

from router.errors import ReplicaUnreachable
from router.proxy.forwarder import Forwarder
from router.replicas.replica import Replica
from router.tls import CertificateError, renew, tls_to_replicas
from tests.support.proxy import Engine, always, ask, gateway
from tests.support.raw_http import json_reply
from tests.support.spliced import QUICK
from tests.support.tls import Authority, server_context

GOOD = json_reply(b"{}")


@pytest.fixture
def authority(tmp_path):
    return Authority.found(tmp_path)


@asynccontextmanager
async def behind(served, towards):
    """A gateway before one TLS engine, reached as localhost; yields both."""
    engine = Engine(always(GOOD))
    await engine.start(ssl=served)
    async with gateway() as app:
        await app.forwarder.aclose()
        app.forwarder = Forwarder(QUICK, ssl_context=towards)
        app.replicas = [Replica("r1", f"https://localhost:{engine.port}")]
        try:
            yield app, engine
        finally:
            await app.forwarder.aclose()
            await engine.stop()


async def refusal(app):
    """The error that the client sees; the listener was told the same."""
    status, _, body, _ = await ask(app.port)
    assert status == 502
    assert isinstance(app.notes.errors[-1], ReplicaUnreachable)
    assert app.notes.errors[-1].message.encode() in body
    assert b"localhost" not in body
    return app.notes.errors[-1].message


async def test_a_certificate_of_the_named_ca_is_believed(authority):
    towards = tls_to_replicas(str(authority.ca), None)
    async with behind(server_context(authority.sign("engine")), towards) as (app, engine):
        assert [(await ask(app.port))[0] for _ in range(3)] == [200, 200, 200]
        assert engine.accepted == 1


async def test_a_certificate_of_another_ca_is_refused(authority, tmp_path):
    other = Authority.found(tmp_path, "other")
    towards = tls_to_replicas(str(other.ca), None)
    async with behind(server_context(authority.sign("engine")), towards) as (app, engine):
        assert "CA that forward.tls_ca does not hold" in await refusal(app)
        assert engine.busy == set()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"days": -1}, "certificate that has expired"),
        ({"names": "DNS:elsewhere"}, "certificate for another name"),
    ],
)
async def test_a_certificate_that_is_not_this_engines_is_refused(authority, fault, words):
    towards = tls_to_replicas(str(authority.ca), None)
    async with behind(server_context(authority.sign("engine", **fault)), towards) as (app, _):
        assert words in await refusal(app)


async def test_an_engine_that_speaks_no_tls_is_unreachable(authority):
    towards = tls_to_replicas(str(authority.ca), None)
    async with behind(None, towards) as (app, _):
        assert await refusal(app)


async def test_our_certificate_is_shown_to_an_engine_that_wants_one(authority):
    served = server_context(authority.sign("engine"), client_ca=authority.ca)
    towards = tls_to_replicas(str(authority.ca), str(authority.sign("router")))
    async with behind(served, towards) as (app, _):
        assert (await ask(app.port))[0] == 200


async def test_without_our_certificate_an_engine_that_wants_one_is_unreachable(authority):
    served = server_context(authority.sign("engine"), client_ca=authority.ca)
    async with behind(served, tls_to_replicas(str(authority.ca), None)) as (app, engine):
        assert await refusal(app)
        assert engine.accepted == 0


async def test_a_certificate_that_is_renewed_counts_from_the_next_connection(authority, tmp_path):
    other = Authority.found(tmp_path, "other")
    served = server_context(authority.sign("engine"), client_ca=authority.ca)
    towards = tls_to_replicas(str(authority.ca), str(other.sign("router")))
    async with behind(served, towards) as (app, _):
        assert await refusal(app)
        renew(towards, str(authority.ca), str(authority.sign("router")))
        assert (await ask(app.port))[0] == 200


@pytest.mark.parametrize("missing", ["ca", "cert"])
def test_a_file_that_can_not_be_used_is_named(tmp_path, missing):
    path = str(tmp_path / "absent.pem")
    with pytest.raises(CertificateError, match="absent"):
        tls_to_replicas(**{"ca": None, "cert": None, missing: path})
