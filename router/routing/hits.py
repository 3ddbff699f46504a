"""How much of a prompt a replica would reuse, and from where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from router.index.tiers import Load, Loads
from router.replicas import ReplicaId
from router.routing.loading import loading


class Hit(Struct, frozen=True, gc=False):
    """Tokens of a prompt that one replica holds, all that it would reuse, what of that it would
    load from a slower tier, and what requests in flight there hold for it."""

    held_tokens: int = 0
    tokens: int = 0
    loaded_tokens: int = 0
    coming_tokens: int = 0
    load_ms: float = 0.0
    tiers: tuple[Load, ...] = ()


class Holdings(Struct, frozen=True, gc=False):
    """Who holds how much of one prefix, in blocks. `anything`: whoever is in one of the three;
    `most_tokens`: of the prefix that can be a hit."""

    matched: Mapping[ReplicaId, int]
    expected: Mapping[ReplicaId, int]
    tiers: Loads
    anything: frozenset[ReplicaId]
    block_size: int
    most_tokens: int

    def hit(self, replica_id: ReplicaId) -> Hit:
        """What one of them would reuse."""
        held, coming = self.matched.get(replica_id, 0), self.expected.get(replica_id, 0)
        near, size, most = max(held, coming), self.block_size, self.most_tokens
        end, load_ms = near, 0.0
        parts = self.tiers.get(replica_id, ())
        if parts:
            end, load_ms = loading(parts, held, near, size)
        tokens = min(end * size, most)
        loaded = tokens - min(near * size, most)
        return Hit(min(held * size, most), tokens, loaded, coming * size, load_ms, parts)


NO_HIT: Final = Hit()
NO_HOLDINGS: Final = Holdings({}, {}, {}, frozenset(), 0, 0)
