"""Consistent hashing: routers that share nothing still agree, and a change moves few keys."""

from collections.abc import Collection

from uhashring import HashRing

from router.replicas import ReplicaId


class Ring:
    """An order of replicas for each key. Rebuilt only when the set of replicas changes."""

    def __init__(self) -> None:
        self._members: frozenset[ReplicaId] = frozenset()
        self._ring = HashRing()

    def order(self, key: str, replicas: Collection[ReplicaId]) -> list[ReplicaId]:
        """All of `replicas`, the key's home first, then where its keys go if that is away."""
        members = frozenset(replicas)
        if members != self._members:
            self._ring = HashRing(nodes=sorted(members))
            self._members = members
        return list(self._ring.iterate_nodes(key)) if members else []
