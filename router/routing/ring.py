"""Consistent hashing: routers that share nothing still agree, and a change moves few keys."""

from bisect import bisect
from collections.abc import Collection
from typing import Final

from uhashring import HashRing
from xxhash import xxh3_64_intdigest

from router.replicas import ReplicaId

POINTS: Final = 160
"""Of each replica on the ring: shares differ by about 1 / sqrt(160) = 8 %."""
MAX_STRANGERS: Final = 64
"""Replicas on the ring that were not asked of, beyond as many as were, before it is laid anew."""


class Ring:
    """An order of replicas for each key.

    All replicas that it was ever asked of lie on one ring, and an order is read off it without
    those that were not asked of now: the same order that a ring of these alone would give.
    """

    def __init__(self) -> None:
        self._members: set[ReplicaId] = set()
        self._places: list[int] = []
        self._homes: list[ReplicaId] = []

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
        wanted = set(replicas)
        if not wanted <= self._members:
            self._lay(wanted)
        if len(wanted) < 2:
            return list(wanted)
        at = bisect(self._places, _hash(key))
        # about what it takes to meet them all: members * (1 + ln(wanted))
        end = at + len(self._members) * len(wanted).bit_length()
        while True:
            met = dict.fromkeys(self._homes[at:end])
            order = [replica_id for replica_id in met if replica_id in wanted]
            if len(order) == len(wanted):
                return order
            end += end - at

    def _lay(self, wanted: set[ReplicaId]) -> None:
        strangers = len(self._members - wanted)
        if strangers > len(wanted) + MAX_STRANGERS:
            self._members.clear()
        self._members |= wanted
        ring = HashRing(nodes=sorted(self._members), vnodes=POINTS, hash_fn=_hash)
        points = ring.get_points()
        self._places = [place for place, _ in points]
        # twice around, so that a walk may begin anywhere
        self._homes = 2 * [replica_id for _, replica_id in points]


def _hash(key: str) -> int:
    # a session's name may hold bytes that are no text
    return xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))
