"""Sessions that went elsewhere than consistent hashing has them, and where they are now.

Their home was busy, or down, when they came. What they left in a cache is where they went: whoever
can't see that in an index, as for replicas without events, would send them back home.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from xxhash import xxh3_64_hexdigest

from router.index.siblings import NoNotes, SiblingNotes
from router.replicas import ReplicaId

Move: TypeAlias = tuple[str, ReplicaId]
"""A session's key, and its new home."""


@dataclass(slots=True)
class Moved:
    """Those moved last, each for a time. Sessions are known by a hash: their names are clients'."""

    ttl_s: float = 600.0
    max_entries: int = 100_000
    host: SiblingNotes = field(default_factory=NoNotes)
    """What all processes of this host have moved."""
    _homes: OrderedDict[str, tuple[ReplicaId, float]] = field(default_factory=OrderedDict)
    _untold: OrderedDict[str, ReplicaId] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, session: str, now: float) -> ReplicaId | None:
        """Where it went. None: it is where consistent hashing has it, as far as we know."""
        key = _key(session)
        found, told = self._homes.get(key), self.host.get(key)
        if found is None or (told is not None and told[1] > found[1]):
            found = told
        return found[0] if found is not None and found[1] > now else None

    def note(self, session: str, replica_id: ReplicaId, now: float) -> None:
        """This router has sent it there."""
        key = _key(session)
        self._put(key, replica_id, now)
        self.host.put(key, replica_id, now + self.ttl_s)
        self._untold.pop(key, None)
        self._untold[key] = replica_id
        while len(self._untold) > self.max_entries:
            self._untold.popitem(last=False)

    def untold(self, most: int) -> list[Move]:
        """Moves that other routers have not been told of, the oldest first."""
        return list(self._untold.items())[:most]

    def told(self, moves: Iterable[Move]) -> None:
        """Others can know of these."""
        for key, replica_id in moves:
            if self._untold.get(key) == replica_id:
                del self._untold[key]

    def hear(self, moves: Iterable[Move], now: float) -> None:
        """What another router has done. What this one has done since is newer."""
        for key, replica_id in moves:
            if key not in self._untold:
                self._put(key, replica_id, now)

    def _put(self, key: str, replica_id: ReplicaId, now: float) -> None:
        self._homes.pop(key, None)
        self._homes[key] = replica_id, now + self.ttl_s
        while len(self._homes) > self.max_entries:
            self._homes.popitem(last=False)


def _key(session: str) -> str:
    return xxh3_64_hexdigest(session.encode("utf-8", "surrogatepass"))
