"""Which event source a replica has: one that we dial, one that dials us, or none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import zmq.asyncio

from router.events.history import CacheShape, read_shape
from router.events.protocol import EventSource
from router.events.zmq_bind import ZmqBind
from router.events.zmq_source import DialTimes, ZmqDial
from router.replicas import Replica

ASK_TIMEOUT_S = 2.0


class Sources(Protocol):
    """Opens a replica's event source."""

    async def open(self, replica: Replica) -> EventSource | None:
        """None: it publishes nothing that we can read."""
        ...


@dataclass(frozen=True, slots=True)
class DialSources:
    """Dials the endpoints that are configured, else those that the replica names itself."""

    context: zmq.asyncio.Context
    session: aiohttp.ClientSession
    times: DialTimes = field(default_factory=DialTimes)

    async def open(self, replica: Replica) -> EventSource | None:
        """See `Sources`. vLLM (0.31 and later) says at /kv_event_sources where it publishes."""
        if replica.events_url is not None:
            events, replay, topic = replica.events_url, replica.replay_url, replica.topic
        else:
            events, replay, topic = await self._ask(replica)
        if not events:
            return None
        return ZmqDial(self.context, events, replay, topic, times=self.times)

    async def ask(self, replica: Replica) -> str:
        """The event endpoint that the replica itself names; empty if it names none."""
        return (await self._ask(replica))[0]

    async def shape_of(self, replica: Replica) -> CacheShape:
        """The size of a replica's cache, as its metrics tell it, else a usual one."""
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        try:
            async with self.session.get(replica.url + "/metrics", timeout=timeout) as response:
                return read_shape(await response.text())
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
            return CacheShape()

    async def _ask(self, replica: Replica) -> tuple[str, str | None, str]:
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        url = replica.url + "/kv_event_sources"
        try:
            async with self.session.get(url, timeout=timeout) as response:
                sources = await response.json(content_type=None) if response.status == 200 else {}
            source = sources[str(replica.rank or 0)]
            host = urlsplit(replica.url).hostname or ""
            replay = source.get("replay_endpoint")
            return (
                _dialable(source["endpoint"], host),
                _dialable(replay, host) if replay else None,
                source.get("topic") or "",
            )
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
            return "", None, ""


@dataclass(frozen=True, slots=True)
class BoundSources:
    """Replicas without an endpoint of their own dial us, each under a topic of its own."""

    bind: ZmqBind
    dial: DialSources

    async def open(self, replica: Replica) -> EventSource | None:
        """See `Sources`. The topic is the configured one, else the replica's id."""
        if replica.events_url is not None:
            return await self.dial.open(replica)
        return self.bind.source(replica.topic or replica.id)


def choose_sources(
    bind_url: str | None, dial: DialSources, run: Callable[[Callable[[], Awaitable[None]]], None]
) -> Sources:
    """Those that we dial, and if there is an address to bind those that dial us; `run` reads."""
    if bind_url is None:
        return dial
    bind = ZmqBind(dial.context, bind_url)
    run(bind.run)
    return BoundSources(bind, dial)


def _dialable(endpoint: str, host: str) -> str:
    """A bound endpoint as one to connect to: `*` is whatever host the API was reached under."""
    name = f"[{host}]" if ":" in host else host
    for anywhere in ("*", "0.0.0.0", "[::]"):
        endpoint = endpoint.replace(f"//{anywhere}:", f"//{name}:")
    return endpoint
