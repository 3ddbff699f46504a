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


NO_HIT: Final = Hit()


def hits(
    matched: Mapping[ReplicaId, int],
    expected: Mapping[ReplicaId, int],
    tiers: Loads,
    block_size: int,
    most_tokens: int,
) -> dict[ReplicaId, Hit]:
    """What each replica would reuse of one prefix, of which all are told in blocks; those that hold
    nothing of it are left out. `most_tokens`: of the prefix that can be a hit."""
    found: dict[ReplicaId, Hit] = {}
    alike: dict[tuple[int, int], Hit] = {}
    for replica_id in {*matched, *expected, *tiers} if expected or tiers else matched:
        held, coming = matched.get(replica_id, 0), expected.get(replica_id, 0)
        if parts := tiers.get(replica_id, ()):
            found[replica_id] = _with_tiers(parts, held, coming, block_size, most_tokens)
            continue
        if (hit := alike.get((held, coming))) is None:
            tokens = min(max(held, coming) * block_size, most_tokens)
            held_tokens = min(held * block_size, most_tokens)
            hit = alike[held, coming] = Hit(held_tokens, tokens, 0, coming * block_size)
        found[replica_id] = hit
    return found


def _with_tiers(
    parts: tuple[Load, ...], held: int, coming: int, block_size: int, most_tokens: int
) -> Hit:
    near = max(held, coming)
    end, load_ms = loading(parts, held, near, block_size)
    tokens = min(end * block_size, most_tokens)
    loaded = tokens - min(near * block_size, most_tokens)
    held_tokens = min(held * block_size, most_tokens)
    return Hit(held_tokens, tokens, loaded, coming * block_size, load_ms, parts)
