"""Every implementation of `PrefixIndex`, and states of one that tests must not tell apart."""

from typing import Any

from router.blocks import BlockStored
from router.index import MemoryIndex, TieredIndex
from tests.support.events import removed, stored


class PutAway(MemoryIndex):
    """Has everything in its arrays at all times, nothing in trays."""

    def store(self, replica_id: str, event: BlockStored) -> None:
        super().store(replica_id, event)
        self.put_away()


class Crowded(PutAway):
    """Has rows that are split and rows that overflow, because others hold thousands of blocks."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        tokens = list(range(10**6, 10**6 + 4 * 3000))
        self.store("crowd", stored(range(10**6, 10**6 + 3000), tokens))
        self.remove("crowd", removed(*range(10**6 + 50, 10**6 + 2000)))


class Tiered(TieredIndex):
    """Gives credit for two slower tiers, which `match` is not about."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(load_ms_per_ktoken={"CPU": 1.0, "STORAGE": 10.0}, **settings)


MAKERS: dict[str, type[MemoryIndex]] = {
    "memory": MemoryIndex,
    "put away": PutAway,
    "crowded": Crowded,
    "tiered": Tiered,
}
