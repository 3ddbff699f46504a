"""What other routers told of their load, read as of now."""

from collections.abc import Callable
from dataclasses import dataclass, field

from router.index.load import Load
from router.replicas import ReplicaId


@dataclass(frozen=True, slots=True)
class _Word:
    load: Load
    at: float


@dataclass(slots=True)
class Told:
    """Each router's last word on each replica. Their queues have gone on since they gave it."""

    clock: Callable[[], float]
    _words: dict[ReplicaId, dict[str, _Word]] = field(default_factory=dict)

    def tell(self, router_id: str, replica_id: ReplicaId, load: Load, at: float) -> None:
        """The router said this at that time of `clock`."""
        self._words.setdefault(replica_id, {})[router_id] = _Word(load, at)

    def get(self, replica_id: ReplicaId) -> Load | None:
        """What all of them make the replica do now. None: nothing. O(routers)."""
        now, total = self.clock(), None
        for word in self._words.get(replica_id, {}).values():
            load = word.load.aged(max(0.0, now - word.at))
            total = load if total is None else total.plus(load)
        return total
