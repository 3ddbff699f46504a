"""Blocks whose parent is not known yet: kept for a while, because the parent may still come."""

from collections import defaultdict
from dataclasses import dataclass, field

from router.blocks import BlockStored, EngineHash


@dataclass(slots=True)
class Parked:
    """One event that waits for its parent, and what has been removed from it meanwhile."""

    event: BlockStored
    since_s: float
    removed: list[EngineHash] = field(default_factory=list)


class ParkingLot:
    """At most `max_events` events, none older than `max_age_s` (at the next call).

    Whatever leaves without its parent is gone: it is never taken for the start of a prompt.
    """

    def __init__(self, max_events: int, max_age_s: float) -> None:
        self._max_events = max_events
        self._max_age_s = max_age_s
        self._parked: dict[int, Parked] = {}  # by ticket: insertion order is order of age
        self._by_parent: defaultdict[EngineHash, list[int]] = defaultdict(list)
        self._by_block: dict[EngineHash, int] = {}
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, event: BlockStored, now_s: float) -> int:
        """Keep an event. Returns how many blocks were given up for it, oldest first."""
        parent = event.parent_block_hash
        if parent is None:
            raise ValueError("the start of a prompt waits for nobody")
        ticket = self._next_ticket
        self._next_ticket += 1
        self._parked[ticket] = Parked(event, now_s)
        self._by_parent[parent].append(ticket)
        self._by_block.update(dict.fromkeys(event.block_hashes, ticket))
        given_up = 0
        while len(self._parked) > self._max_events:
            given_up += self._give_up_oldest()
        return given_up

    def expire(self, now_s: float) -> int:
        """Give up what has waited too long. Returns the number of blocks."""
        given_up = 0
        while self._parked:
            oldest = next(iter(self._parked.values()))
            if now_s - oldest.since_s <= self._max_age_s:
                break
            given_up += self._give_up_oldest()
        return given_up

    def take_children(self, parent: EngineHash) -> list[Parked]:
        """Take out what waits for this block, in the order in which it came."""
        tickets = self._by_parent.pop(parent, ())
        return [self._take(ticket) for ticket in tickets]

    def note_removed(self, block: EngineHash) -> bool:
        """Remember that a parked block has left the cache. False if it is not parked."""
        ticket = self._by_block.get(block)
        if ticket is None:
            return False
        self._parked[ticket].removed.append(block)
        return True

    def _give_up_oldest(self) -> int:
        ticket, parked = next(iter(self._parked.items()))
        parent = parked.event.parent_block_hash
        assert parent is not None
        siblings = self._by_parent[parent]
        siblings.remove(ticket)
        if not siblings:
            del self._by_parent[parent]
        self._take(ticket)
        return len(parked.event.block_hashes)

    def _take(self, ticket: int) -> Parked:
        parked = self._parked.pop(ticket)
        for block in parked.event.block_hashes:
            if self._by_block.get(block) == ticket:
                del self._by_block[block]
        return parked
