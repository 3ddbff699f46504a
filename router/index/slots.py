"""Block hash → the set of replicas that hold it, as the bits of one int."""

from collections import deque
from collections.abc import Iterator, Sequence

from router.blocks import BlockHash
from router.index.holdings import Holdings, drain
from router.replicas.replica import ReplicaId


class SlotTable:
    """Gives each replica a bit (a slot), and keeps for each block the mask of its holders.

    Retiring a slot takes it out of `live` at once, so that nothing matches it any more; its bits
    are swept out of the masks a few at a time, and only then is it given out again. So dropping
    a million blocks does not hold up the event loop.
    """

    def __init__(self) -> None:
        self.masks: dict[BlockHash, int] = {}
        self.live = 0
        self._owners: dict[int, ReplicaId] = {}
        self._free: list[int] = []
        self._retired: deque[tuple[Holdings, Iterator[BlockHash]]] = deque()
        self.unswept = 0

    def open(self, replica_id: ReplicaId) -> Holdings:
        """Empty holdings with a slot of their own."""
        slot = self._free.pop() if self._free else len(self._owners) + len(self._retired)
        self._owners[slot] = replica_id
        holdings = Holdings(slot)
        self.live |= holdings.bit
        return holdings

    def retire(self, holdings: Holdings) -> None:
        """Take a slot out of every match from now on."""
        self.live &= ~holdings.bit
        del self._owners[holdings.slot]
        self.unswept += holdings.handles()
        self._retired.append((holdings, drain(holdings.shelves.values())))

    def sweep(self, limit: int) -> None:
        """Take up to `limit` retired blocks out of the masks. O(limit)."""
        masks = self.masks
        while limit > 0 and self._retired:
            holdings, blocks = self._retired[0]
            keep = ~holdings.bit
            for block in blocks:
                self.unswept -= 1
                mask = masks.get(block, 0) & keep
                if mask:
                    masks[block] = mask
                else:
                    masks.pop(block, None)
                limit -= 1
                if limit <= 0:
                    return
            self._retired.popleft()
            self._free.append(holdings.slot)

    def walk(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of the prefix under each live bit; a hole ends a replica's match."""
        found: dict[ReplicaId, int] = {}
        holders = self.live
        if not holders:
            return found
        get = self.masks.get
        for depth, block in enumerate(prefix):
            still = holders & get(block, 0)
            if still != holders:
                if depth:
                    self._note(holders ^ still, depth, found)
                if not still:
                    return found
                holders = still
        if prefix:
            self._note(holders, len(prefix), found)
        return found

    def _note(self, mask: int, depth: int, found: dict[ReplicaId, int]) -> None:
        while mask:
            lowest = mask & -mask
            found[self._owners[lowest.bit_length() - 1]] = depth
            mask ^= lowest
