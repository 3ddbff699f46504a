"""Where replicas come from. A discovery yields full sets; the pool works out what changed."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Protocol

from router.replicas.replica import Replica


class Discovery(Protocol):
    """Yields all replicas, at once and after each change. A missed change heals itself."""

    def watch(self) -> AsyncIterator[frozenset[Replica]]: ...


class StaticDiscovery:
    """The replicas that the configuration names, until it is read again and names others."""

    def __init__(self, replicas: Collection[Replica]) -> None:
        self._replicas = frozenset(replicas)
        self._changed = asyncio.Event()

    def replace(self, replicas: Collection[Replica]) -> None:
        """From now on these."""
        self._replicas = frozenset(replicas)
        self._changed.set()

    async def watch(self) -> AsyncIterator[frozenset[Replica]]:
        while True:
            self._changed.clear()
            yield self._replicas
            await self._changed.wait()
