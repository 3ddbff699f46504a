"""Where replicas come from. A discovery yields full sets; the pool works out what changed."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Protocol

from router.replicas.replica import Replica


class Discovery(Protocol):
    """Yields all replicas, at once and after each change. A missed change heals itself."""

    def watch(self) -> AsyncIterator[frozenset[Replica]]: ...


class StaticDiscovery:
    """The replicas that the configuration names."""

    def __init__(self, replicas: Collection[Replica]) -> None:
        self._replicas = frozenset(replicas)

    async def watch(self) -> AsyncIterator[frozenset[Replica]]:
        yield self._replicas
        await asyncio.Event().wait()
