"""Consistent hashing: routers that share nothing still agree, and a change moves few keys.

By rendezvous (highest random weight): each replica has a number for each key, and the highest is
its home. Every replica gets an equal share, one that leaves gives its keys to all others, and
nothing is built beforehand.
"""

from collections.abc import Collection
from typing import Final

from xxhash import xxh3_64_intdigest

from router.replicas import ReplicaId

MAX_SEEDS: Final = 8192
"""Replicas whose seed is remembered."""


class Ring:
    """An order of replicas for each key."""

    def __init__(self) -> None:
        self._seeds: dict[ReplicaId, int] = {}

    def order(
        self, key: str, replicas: Collection[ReplicaId], moved_to: ReplicaId | None = None
    ) -> list[ReplicaId]:
        """All of `replicas`, the key's home first, then where its keys go if that is away.

        `moved_to`: its home since it was moved.
        """
        order = self._order(key, replicas)
        if moved_to is not None and moved_to in order:
            order.remove(moved_to)
            order.insert(0, moved_to)
        return order

    def _order(self, key: str, replicas: Collection[ReplicaId]) -> list[ReplicaId]:
        # a session's name may hold bytes that are no text
        weights, name = {}, key.encode("utf-8", "surrogatepass")
        for replica_id in replicas:
            seed = self._seeds.get(replica_id)
            if seed is None:
                seed = self._remember(replica_id)
            weights[replica_id] = xxh3_64_intdigest(name, seed)
        return sorted(weights, key=weights.__getitem__, reverse=True)

    def _remember(self, replica_id: ReplicaId) -> int:
        if len(self._seeds) >= MAX_SEEDS:
            self._seeds.clear()
        seed = self._seeds[replica_id] = xxh3_64_intdigest(replica_id.encode())
        return seed
