"""Replicas behind a name with many addresses, such as a headless Service: no API, no rights."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from router.replicas.ports import Ports
from router.replicas.replica import Replica

log = logging.getLogger(__name__)

Resolve = Callable[[str], Awaitable[frozenset[str]]]
LOOKUP_TIMEOUT_S: Final = 5.0
_ABSENT: Final = (socket.EAI_NONAME, socket.EAI_NODATA)


class DnsDiscovery:
    """Resolves `name` every `interval_s`; each address is a replica, its id `address:port`.

    A name that does not exist has no addresses: that is what a headless Service without ready
    pods looks like. A resolver that fails or is late leaves the replicas as they are.
    """

    def __init__(
        self, name: str, ports: Ports, *, interval_s: float, resolve: Resolve | None = None
    ) -> None:
        self._name = name
        self._ports = ports
        self._interval_s = interval_s
        self._resolve = resolve or resolve_addresses

    async def watch(self) -> AsyncIterator[frozenset[Replica]]:
        seen: frozenset[str] | None = None
        while True:
            try:
                async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                    addresses = await self._resolve(self._name)
            except (OSError, TimeoutError) as exc:
                log.warning("%s: not resolved, replicas stay as they are: %r", self._name, exc)
            else:
                if addresses != seen:
                    seen = addresses
                    yield frozenset(r for a in addresses for r in self._ports.replicas("", a))
            await asyncio.sleep(self._interval_s)


async def resolve_addresses(name: str) -> frozenset[str]:
    """All addresses of a name, by the system's resolver. OSError if it can't tell."""
    loop = asyncio.get_running_loop()
    try:
        rows = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as exc:
        if exc.errno in _ABSENT:
            return frozenset()
        raise
    return frozenset(str(row[4][0]) for row in rows)
