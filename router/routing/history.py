"""What a router that hears no events believes: replicas hold what was sent to them of late."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from router.blocks import BlockHash
from router.replicas import ReplicaId

MOST_BLOCKS: Final = 32_768
"""Blocks believed to be held, per replica; those routed longest ago are forgotten first."""


@dataclass(slots=True)
class History:
    """Blocks by replica, in the order in which they were last routed there."""

    max_blocks: int = MOST_BLOCKS
    _routed: dict[ReplicaId, OrderedDict[BlockHash, None]] = field(default_factory=dict)

    def routed(self, replica_id: ReplicaId, prefix: Sequence[BlockHash]) -> None:
        """The replica gets this prompt. O(blocks)."""
        blocks = self._routed.setdefault(replica_id, OrderedDict())
        for block in reversed(prefix):  # a prompt's tail is evicted before its head
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self.max_blocks:
            blocks.popitem(last=False)

    def match(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """As `PrefixIndex.match`. O(replicas × length of the match)."""
        found: dict[ReplicaId, int] = {}
        for replica_id, blocks in self._routed.items():
            held = next((i for i, b in enumerate(prefix) if b not in blocks), len(prefix))
            if held:
                found[replica_id] = held
        return found

    def forget(self, replica_id: ReplicaId) -> None:
        self._routed.pop(replica_id, None)
