"""Replicas that a Kubernetes API server knows: pods by label, or the endpoints of a Service.

List, then watch from the list's version for `relist_s`, then list again. So whatever a watch
misses (a silent connection, a lost delete) is put right by the next list. While the server can't
be asked, what it said last stays: health probes take out those that have gone meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from router.replicas.kube_objects import Event, Listing, Thing
from router.replicas.replica import Replica

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
SETTLE_S: Final = 0.1
"""Between two reads of a watch: a churn of pods becomes at most ten new sets a second."""

_LISTING: Final = msgspec.json.Decoder(Listing)
_EVENT: Final = msgspec.json.Decoder(Event)

ToReplicas = Callable[[Thing], Iterator[Replica]]


class ApiUnusable(Exception):
    """The API server refused, could not be reached, or ended what it was saying."""


class VersionGone(ApiUnusable):
    """The version to watch from is too old (410): list again, at once."""


class Api(Protocol):
    """What discovery asks of the API server. Both raise ApiUnusable."""

    async def list(self) -> bytes:
        """A List object, as JSON."""
        ...

    def watch(self, version: str, *, for_s: float) -> AsyncGenerator[bytes, None]:
        """The watch's body as it arrives, at most `for_s` long, whatever the server does."""
        ...


@dataclass(slots=True)
class KubernetesDiscovery:
    """Follows the objects of `api`; `to_replicas` raises ValueError for one it can't use."""

    api: Api
    to_replicas: ToReplicas
    relist_s: float = 20.0
    _held: dict[str, frozenset[Replica]] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    async def watch(self) -> AsyncIterator[frozenset[Replica]]:
        clock, pause_s = asyncio.get_running_loop().time, FIRST_PAUSE_S
        told: frozenset[Replica] | None = None
        while True:
            started = clock()
            try:
                async with aclosing(self._follow()) as changes:
                    async for _ in changes:
                        if (replicas := self._all()) != told:
                            told = replicas
                            yield replicas
            except VersionGone as exc:
                log.info("Kubernetes' API: %s; listing anew", exc)
            except ApiUnusable as exc:
                self._complain(f"Kubernetes' API: {exc}; the replicas stay as they are")
            # also when all went well: a server that ends each watch at once must not be flooded
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if clock() - started > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
                self._said.clear()
            await asyncio.sleep(pause_s)

    async def _follow(self) -> AsyncGenerator[None, None]:
        """One list and one watch; yields after everything that may have changed something."""
        listing = _decode(await self.api.list(), _LISTING)
        self._held = {thing.metadata.name: self._read(thing) for thing in listing.items or ()}
        yield
        rest = b""
        version = listing.metadata.resource_version
        async with aclosing(self.api.watch(version, for_s=self.relist_s)) as body:
            async for data in body:
                *lines, rest = (rest + data).split(b"\n")
                for line in filter(None, lines):
                    self._apply(_decode(line, _EVENT))
                yield
                await asyncio.sleep(SETTLE_S)

    def _all(self) -> frozenset[Replica]:
        return frozenset[Replica]().union(*self._held.values())

    def _apply(self, event: Event) -> None:
        thing = event.object
        if event.type == "ERROR":
            kind = VersionGone if thing.code == 410 else ApiUnusable
            raise kind(f"watch: {thing.code} {thing.message}")
        if event.type == "DELETED":
            self._held.pop(thing.metadata.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self._held[thing.metadata.name] = self._read(thing)

    def _read(self, thing: Thing) -> frozenset[Replica]:
        try:
            return frozenset(self.to_replicas(thing))
        except ValueError as exc:
            self._complain(f"{thing.metadata.name} is left out: {exc}")
            return frozenset()

    def _complain(self, text: str) -> None:
        """Once, not at each try."""
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)


T = TypeVar("T")


def _decode(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as exc:
        raise ApiUnusable(f"what it said is not understood: {exc}") from exc
