"""Discovery by a file and by a name: what a bad file or an absent name means."""

import socket

import pytest

from router.config import ConfigError, parse_config, parse_replicas
from router.replicas.dns_discovery import DnsDiscovery, resolve_addresses
from router.replicas.ports import Ports
from tests.support.discoveries import FileWorld, followed
from tests.support.processes import until


async def test_a_file_that_is_broken_or_gone_leaves_the_replicas_and_is_told_once(tmp_path, caplog):
    world = FileWorld(tmp_path / "replicas.yaml")
    await world.set({"a": "10.0.0.1"})
    async with followed(world.discovery) as seen:
        await seen.reach("http://10.0.0.1:8000")
        await world.break_()

        async def was_told():
            return "no YAML" in caplog.text

        await until(was_told)
        (tmp_path / "replicas.yaml").unlink()

        async def was_told_again():
            return "No such file" in caplog.text

        await until(was_told_again)
        await world.mend()
        await world.set({"b": "10.0.0.2"})
        await seen.reach("http://10.0.0.2:8000")
        assert all(seen.sets)
    assert caplog.text.count("no YAML") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"- a", "replicas"),
        (b"replicas: []\nlisten: {}", "replicas"),
        (b"replicas: [{id: a}]", "url"),
        (b"replicas: [{id: a, url: 'http://x'}, {id: a, url: 'http://y'}]", "more than once"),
    ],
)
def test_a_replicas_file_says_what_is_wrong_with_it(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_replicas(text)


@pytest.mark.parametrize(
    ("discovery", "words"),
    [
        ({"source": "dns"}, r"discovery\.name"),
        ({"source": "file"}, r"discovery\.file"),
        ({"source": "kubernetes"}, "one of selector"),
        ({"source": "kubernetes", "selector": "a=b", "service": "s"}, "one of selector"),
    ],
)
def test_a_source_without_what_it_needs_is_refused(discovery, words):
    with pytest.raises(ConfigError, match=words):
        parse_config({"discovery": discovery})


def test_named_replicas_beside_another_source_are_refused():
    tree = {
        "discovery": {"source": "dns", "name": "x"},
        "replicas": [{"id": "a", "url": "http://a"}],
    }
    with pytest.raises(ConfigError, match="must be empty"):
        parse_config(tree)


async def test_a_name_that_does_not_exist_has_no_replicas():
    assert await resolve_addresses("no-such-name.invalid") == frozenset()


async def test_the_systems_resolver_finds_addresses():
    assert await resolve_addresses("127.0.0.1") == {"127.0.0.1"}


async def test_addresses_become_replicas_named_after_them():
    async def resolve(name):
        return frozenset({"10.0.0.1", "fd00::1"})

    ports = Ports(http=9000, events=5557, replay=5558, topic="kv")
    async with followed(DnsDiscovery("x", ports, interval_s=9, resolve=resolve)) as seen:
        await seen.reach("http://10.0.0.1:9000", "http://[fd00::1]:9000")
        told = {r.id: (r.events_url, r.replay_url, r.topic) for r in seen.sets[-1]}
    assert told == {
        "10.0.0.1:9000": ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558", "kv"),
        "[fd00::1]:9000": ("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5558", "kv"),
    }


async def test_a_resolver_that_fails_at_the_start_is_asked_again():
    answers = [socket.gaierror(socket.EAI_AGAIN, "try again"), frozenset({"10.0.0.1"})]

    async def resolve(name):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    async with followed(DnsDiscovery("x", Ports(), interval_s=0.01, resolve=resolve)) as seen:
        await seen.reach("http://10.0.0.1:8000")
