"""Who holds which blocks: what the rest of the router may ask of an index, and tell it."""

from collections.abc import Sequence
from typing import Protocol

from router.blocks import BlockHash, BlockRemoved, BlockStored
from router.replicas.replica import ReplicaId


class PrefixIndex(Protocol):
    """Hints about what each replica's prefix cache holds, keyed by our own block hashes.

    A hint that is missing costs one prefill, and so does a wrong one; so forgetting is always
    allowed. Nothing here waits, and nothing raises for what an engine may say: an event that
    can't be used is counted and left out. Costs are per call; n = blocks in the event or prefix.
    """

    def store(self, replica_id: ReplicaId, event: BlockStored) -> None:
        """One more copy of each of these blocks. Makes the replica known. O(n + tokens)."""
        ...

    def store_all(self, replica_id: ReplicaId, events: Sequence[BlockStored]) -> None:
        """`store` of each, in their order, at a third of the cost. O(n + tokens).

        Each is of one block with a parent and without keys, whose tokens are in an array and fill
        it; group, kind, medium, locality and block size are the same in all.
        """
        ...

    def remove(self, replica_id: ReplicaId, event: BlockRemoved) -> None:
        """One copy less of each of these blocks; a block is gone with its last copy. O(n)."""
        ...

    def expect_reused(self, replica_id: ReplicaId) -> None:
        """Requests make this replica report the blocks that they reuse as if it stored them.

        (`kv_cache_report_mode=full` of vLLM 0.26 and later.) From now on, until it is forgotten,
        a prompt's start that is held already is no further copy. Makes the replica known.
        """
        ...

    def clear(self, replica_id: ReplicaId) -> None:
        """The replica holds nothing any more, on any tier; it stays known. O(1), amortised."""
        ...

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica leaves; what it held goes with it. O(1), amortised."""
        ...

    def match(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """How many blocks from the prefix's start on each replica holds without a hole.

        Replicas that hold none are left out. O(length of the longest match + replicas found).
        """
        ...

    def block_sizes(self, replica_id: ReplicaId | None = None) -> frozenset[int]:
        """Tokens per block, as seen in a replica's events (None: in those of all). O(replicas).

        A prefix matches only replicas that use the block size it was hashed with.
        """
        ...
