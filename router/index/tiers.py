"""Slower tiers of an engine's cache (its `medium`): what lies there is loaded, not computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from router.blocks import BlockHash, BlockRemoved, BlockStored
from router.index.arena import Allocate
from router.index.memory import DEFAULT_MAX_BYTES, TIDY_BLOCKS, MemoryIndex
from router.replicas.replica import ReplicaId

NO_TIERS: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Load:
    """So many blocks of a prompt are loaded from a tier, behind those that are held nearer."""

    medium: str
    blocks: int
    ms_per_token: float


Loads = Mapping[ReplicaId, tuple[Load, ...]]


class TieredIndex(MemoryIndex):
    """A `MemoryIndex` of engines' own memory, beside one for each slower tier.

    `match` is about their own memory alone; `beyond` says what tiers add. `load_ms_per_ktoken`:
    milliseconds that loading 1,000 tokens takes, by medium; media that are not named count as out
    of reach. Each tier may take as much of `max_bytes` as the engines' own memory. A tier's blocks
    are not in dumps: after a restart they are learnt anew.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        max_bytes: int = DEFAULT_MAX_BYTES,
        load_ms_per_ktoken: Mapping[str, float] = NO_TIERS,
        allocate: Allocate | None = None,
    ) -> None:
        share = max_bytes // (1 + len(load_ms_per_ktoken))
        super().__init__(clock=clock, max_bytes=share, allocate=allocate)
        self.max_bytes = max_bytes
        fastest_first = sorted(load_ms_per_ktoken, key=load_ms_per_ktoken.__getitem__)
        self._ms_per_token = {medium: load_ms_per_ktoken[medium] / 1e3 for medium in fastest_first}
        self._tiers = {
            medium: MemoryIndex(clock=clock, max_bytes=share) for medium in fastest_first
        }

    @property
    def bytes(self) -> int:
        """What all tiers take."""
        return super().bytes + sum(tier.bytes for tier in self._tiers.values())

    def store(self, replica_id: ReplicaId, event: BlockStored) -> None:
        """See `PrefixIndex`."""
        tier = self._tiers.get(event.medium or "")
        if tier is None:
            super().store(replica_id, event)
        else:
            tier.store(replica_id, replace(event, medium=None))

    def store_all(self, replica_id: ReplicaId, events: Sequence[BlockStored]) -> None:
        """See `PrefixIndex`."""
        tier = self._tiers.get(events[0].medium or "")
        if tier is None:
            super().store_all(replica_id, events)
        else:
            tier.store_all(replica_id, [replace(event, medium=None) for event in events])

    def remove(self, replica_id: ReplicaId, event: BlockRemoved) -> None:
        """See `PrefixIndex`."""
        tier = self._tiers.get(event.medium or "")
        if tier is None:
            super().remove(replica_id, event)
        else:
            tier.remove(replica_id, replace(event, medium=None))

    def clear(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`."""
        super().clear(replica_id)
        for tier in self._tiers.values():
            tier.clear(replica_id)

    def forget(self, replica_id: ReplicaId) -> None:
        """See `PrefixIndex`."""
        super().forget(replica_id)
        for tier in self._tiers.values():
            tier.forget(replica_id)

    def beyond(self, prefix: Sequence[BlockHash], matched: Mapping[ReplicaId, int]) -> Loads:
        """What each replica would load behind its `matched` blocks, from the fastest tier on.

        A tier goes on where the one before it ends. Replicas that would load nothing are left out.
        """
        ends = dict(matched)
        loads: dict[ReplicaId, tuple[Load, ...]] = {}
        for medium, tier in self._tiers.items():
            whole = tier.match(prefix)
            for replica_id in tier.replicas():
                start = ends.get(replica_id, 0)
                end = whole.get(replica_id, 0)
                if end <= start:  # it lacks a block that lies nearer, but may have the next one
                    end = start + tier.match(prefix[start:]).get(replica_id, 0) if start else 0
                if end > start:
                    load = Load(medium, end - start, self._ms_per_token[medium])
                    loads[replica_id] = (*loads.get(replica_id, ()), load)
                    ends[replica_id] = end
        return loads

    @property
    def is_untidy(self) -> bool:
        """See `MemoryIndex`."""
        return super().is_untidy or any(tier.is_untidy for tier in self._tiers.values())

    def tidy(self, limit: int = TIDY_BLOCKS) -> None:
        """See `MemoryIndex`: what is untidy first."""
        for tier in self._tiers.values():
            if tier.is_untidy:
                tier.tidy(limit)
                return
        super().tidy(limit)
