"""Who is asked what replicas hold: the index of this process, or one of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.blocks import BlockHash
from router.index.answers import Known
from router.index.tiers import TieredIndex
from router.replicas import ReplicaId


class Source(Protocol):
    """Where it is known who holds what."""

    @property
    def at_hand(self) -> Known | None:
        """What can be asked on the spot; None: only `ask` knows."""
        ...

    def block_sizes(self, replica_id: ReplicaId) -> frozenset[int]:
        """See `PrefixIndex.block_sizes`."""
        ...

    async def ask(self, prefixes: Sequence[Sequence[BlockHash]]) -> tuple[Known, str]:
        """What is known of these (none is empty), and why nothing is, if it could not be asked."""
        ...


@dataclass(frozen=True, slots=True)
class OwnIndex:
    """A `Source` that has all at hand."""

    index: TieredIndex

    @property
    def at_hand(self) -> Known | None:
        """See `Source`."""
        return self.index

    def block_sizes(self, replica_id: ReplicaId) -> frozenset[int]:
        """See `Source`."""
        return self.index.block_sizes(replica_id)

    async def ask(self, prefixes: Sequence[Sequence[BlockHash]]) -> tuple[Known, str]:
        """See `Source`. Does not wait."""
        return self.index, ""
