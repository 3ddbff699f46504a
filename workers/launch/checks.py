"""Did the flags take? Ask the started vLLM, and say which flag cures what is missing."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import zmq
import zmq.asyncio
from prometheus_client.parser import text_string_to_metric_families

from router.blocks.wire import END_OF_REPLAY, MalformedFrame, decode_replay, encode_replay_request
from workers.launch.flags import Launch, is_bound_by_vllm, ranks

_POLL_S: Final = 0.25
_REPLY_TIMEOUT_S: Final = 5.0


class NotVisible(Exception):
    """vLLM runs, but its cache can't be seen as it should be. The text names the cure."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """One data-parallel rank's ZeroMQ endpoints, as vLLM states them."""

    rank: int
    events: str
    replay: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a vLLM that passed every check says of itself. `block_size`: tokens."""

    model: str
    max_model_len: int
    block_size: int
    publishers: tuple[Publisher, ...]


class Api:
    """vLLM's HTTP API at `base`, seen from beside it."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session = session
        self._base = base

    async def wait_until_healthy(self) -> None:
        """Until /health says 200; the caller bounds the wait. A model may take minutes to load."""
        while True:
            try:
                async with self._session.get(f"{self._base}/health") as reply:
                    if reply.status == 200:
                        return
            except (aiohttp.ClientConnectionError, TimeoutError):
                pass  # not listening yet
            await asyncio.sleep(_POLL_S)

    async def model(self) -> tuple[str, int]:
        """(served name, longest context in tokens)."""
        async with self._session.get(f"{self._base}/v1/models") as reply:
            reply.raise_for_status()
            first = (await reply.json())["data"][0]
            return first["id"], first["max_model_len"]

    async def metrics(self) -> str:
        async with self._session.get(f"{self._base}/metrics") as reply:
            reply.raise_for_status()
            return await reply.text()

    async def event_sources(self) -> Any | None:
        """None from releases before 0.31, which don't have the endpoint."""
        async with self._session.get(f"{self._base}/kv_event_sources") as reply:
            if reply.status == 404:
                return None
            reply.raise_for_status()
            return await reply.json()


async def check(api: Api, launch: Launch) -> Seen:
    """All checks on a vLLM that is healthy. NotVisible names the first that fails."""
    block_size = cache_block_size(await api.metrics())
    publishers = stated_publishers(await api.event_sources(), launch)
    for publisher in publishers:
        await _check_replay(publisher)
        await _check_events(publisher)
    model, max_model_len = await api.model()
    return Seen(model, max_model_len, block_size, publishers)


def cache_block_size(metrics: str) -> int:
    """Tokens per block, from `vllm:cache_config_info`. NotVisible if prefixes are not cached."""
    labels = _cache_config(metrics)
    if labels.get("enable_prefix_caching") != "True":
        raise NotVisible(
            "the prefix cache is off: --enable-prefix-caching did not take effect, "
            "which may be because this model does not support it"
        )
    try:
        return int(labels["block_size"])
    except (KeyError, ValueError):
        raise NotVisible("/metrics has no block size: set --block-size") from None


def _cache_config(metrics: str) -> Mapping[str, str]:
    for family in text_string_to_metric_families(metrics):
        if family.name == "vllm:cache_config_info" and family.samples:
            return family.samples[0].labels
    raise NotVisible(
        "/metrics has no vllm:cache_config_info: drop --disable-log-stats, also from --config"
    )


def stated_publishers(sources: Any | None, launch: Launch) -> tuple[Publisher, ...]:
    """The publisher of each rank, as /kv_event_sources states them.

    `sources`: None where the endpoint is missing (then it is what the flags asked for), else a
    map from rank to settings, or, in later releases, a list of settings.
    """
    if sources is None:
        return tuple(
            Publisher(rank, _with_offset(launch.events, rank), _with_offset(launch.replay, rank))
            for rank in range(ranks(launch))
        )
    pairs = sources.items() if isinstance(sources, dict) else enumerate(sources)
    stated = tuple(_stated(int(rank), settings, launch) for rank, settings in pairs)
    if not stated:
        raise NotVisible(
            "no KV events: --kv-events-config did not take effect; look for another in --config"
        )
    return stated


def _stated(rank: int, settings: Mapping[str, Any], launch: Launch) -> Publisher:
    if not settings.get("replay_endpoint"):
        raise NotVisible("no replay of KV events: --kv-events-config lost its replay_endpoint")
    if settings.get("topic", launch.topic) != launch.topic:
        raise NotVisible(
            f"the topic is {settings['topic']!r}: --kv-events-config asked for {launch.topic!r}"
        )
    return Publisher(rank, settings["endpoint"], settings["replay_endpoint"])


def _with_offset(endpoint: str, rank: int) -> str:
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}" if rank else endpoint


def reachable(endpoint: str, host: str = "127.0.0.1") -> str:
    """Where others reach an endpoint that vLLM binds on every address."""
    return endpoint.replace("*", host).replace("0.0.0.0", host)


async def _check_replay(publisher: Publisher) -> None:
    """Ask for batches that can't exist yet: a publisher answers with the end of the replay."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    try:
        socket.connect(reachable(publisher.replay))
        await socket.send_multipart(encode_replay_request(END_OF_REPLAY >> 1))
        answer = await asyncio.wait_for(socket.recv_multipart(), _REPLY_TIMEOUT_S)
        decode_replay(answer)
    except (TimeoutError, MalformedFrame) as exc:
        raise NotVisible(
            f"{publisher.replay} does not replay KV events: is its port in use? "
            "Choose another with --replay"
        ) from exc
    finally:
        socket.close()
        context.term()


async def _check_events(publisher: Publisher) -> None:
    if not (is_bound_by_vllm(publisher.events) and publisher.events.startswith("tcp://")):
        return  # vLLM connects to it: who listens there is not ours to check
    host, _, port = reachable(publisher.events).removeprefix("tcp://").rpartition(":")
    try:
        opening = asyncio.open_connection(host.strip("[]"), int(port))
        _, writer = await asyncio.wait_for(opening, _REPLY_TIMEOUT_S)
    except (OSError, TimeoutError) as exc:
        raise NotVisible(
            f"nothing listens on {publisher.events}: is its port in use? Choose another with "
            "--events"
        ) from exc
    writer.close()
    await writer.wait_closed()
