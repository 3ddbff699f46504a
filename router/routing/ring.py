"""Consistent hashing: routers that share nothing still agree, and a change moves few keys."""

from bisect import bisect
from collections.abc import Collection
from typing import Final

from uhashring import HashRing

from router.replicas import ReplicaId

MAX_ORDERS: Final = 1024
"""Orders that are remembered; with hundreds of replicas each takes kilobytes."""


class Ring:
    """An order of replicas for each key. Rebuilt only when the set of replicas changes."""

    def __init__(self) -> None:
        self._members: frozenset[ReplicaId] = frozenset()
        self._ring = HashRing()
        self._points: list[int] = []
        self._orders: dict[int, tuple[ReplicaId, ...]] = {}

    def order(self, key: str, replicas: Collection[ReplicaId]) -> list[ReplicaId]:
        """All of `replicas`, the key's home first, then where its keys go if that is away."""
        members = frozenset(replicas)
        if members != self._members:
            self._ring = HashRing(nodes=sorted(members))
            self._members = members
            self._points = [point for point, _ in self._ring.get_points()]
            self._orders.clear()
        if len(members) < 2:
            return list(members)
        # all keys between two points have the same order: it is walked once
        place = bisect(self._points, self._ring.hashi(key))
        order = self._orders.get(place)
        if order is None:
            if len(self._orders) >= MAX_ORDERS:
                self._orders.clear()
            order = self._orders[place] = tuple(self._ring.iterate_nodes(key))
        return list(order)
