"""Clients that must show a certificate, and CAs that change under way."""

import signal
import ssl

import aiohttp
import pytest

from tests.support.faults import bed, works
from tests.support.processes import until
from tests.support.tls import Authority


def client_context(authority, shows=None):
    context = ssl.create_default_context(cafile=str(authority.ca))
    if shows is not None:
        context.load_cert_chain(shows)
    return context


async def is_served(url, context):
    """Whether a new connection with this context gets an answer."""
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.get(url.replace("127.0.0.1", "localhost") + "/healthz") as response,
        ):
            return response.status == 200
    except (aiohttp.ClientConnectionError, ssl.SSLError):
        return False


@pytest.fixture
def authority(tmp_path):
    return Authority.found(tmp_path)


def listening(cert, client_ca):
    return (f"listen.tls_cert={cert}", f"listen.tls_client_ca={client_ca}", "listen.admin_port=0")


async def test_only_clients_with_a_certificate_of_the_ca_are_served(authority, tmp_path):
    other = Authority.found(tmp_path, "other")
    settings = listening(authority.sign("router"), authority.ca)
    async with bed(works, settings=settings, is_ready=False) as run:
        url = run.router.url
        assert await is_served(url, client_context(authority, authority.sign("client")))
        assert not await is_served(url, client_context(authority))
        assert not await is_served(url, client_context(authority, other.sign("stranger")))
        expired = authority.sign("late", days=-1)
        assert not await is_served(url, client_context(authority, expired))


async def test_a_ca_that_is_replaced_is_believed_no_more_and_a_bad_file_changes_nothing(
    authority, tmp_path
):
    other = Authority.found(tmp_path, "other")
    ca = tmp_path / "clients.pem"
    ca.write_bytes(authority.ca.read_bytes())
    settings = listening(authority.sign("router"), ca)
    old = client_context(authority, authority.sign("old"))
    new = client_context(authority, other.sign("new"))
    async with bed(works, settings=settings, is_ready=False) as run:
        assert await is_served(run.router.url, old)
        assert not await is_served(run.router.url, new)

        async def is_replaced():
            return await is_served(run.router.url, new)

        ca.write_text("no certificate")
        run.router.process.send_signal(signal.SIGHUP)
        assert await is_served(run.router.url, old)
        ca.write_bytes(other.ca.read_bytes())
        run.router.process.send_signal(signal.SIGHUP)
        await until(is_replaced)
        assert not await is_served(run.router.url, old)
