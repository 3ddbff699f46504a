"""Who waits in the router for a replica, and who is next."""

from collections import OrderedDict
from dataclasses import dataclass, field

from router.routing.choosing import Choice
from router.routing.cost import predicted_ttft_ms


def may_start(choice: Choice, slo_ms: float) -> bool:
    """Whether waiting in the router would be for nothing: some replica keeps the SLO for this
    prompt, or has nothing to compute before it. O(replicas)."""
    return any(
        candidate.wait_ms + candidate.memory_wait_ms <= 0
        or predicted_ttft_ms(choice.query, candidate) <= slo_ms
        for candidate in map(choice.candidates.__getitem__, choice.decision.replicas)
    )


@dataclass(slots=True, eq=False)
class Place:
    """One who waits."""

    tenant: str


@dataclass(slots=True)
class Line:
    """Tenants take turns, each tenant's requests come in order. Only the first may go.

    Were others let past a first one that needs more room, they would take it for ever. All O(1).
    """

    _tenants: OrderedDict[str, dict[int, Place]] = field(default_factory=OrderedDict)
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    @property
    def first(self) -> Place | None:
        """Who is next; None: nobody waits."""
        places = next(iter(self._tenants.values()), None)
        return next(iter(places.values())) if places else None

    def join(self, place: Place) -> None:
        """Behind its tenant's others; a tenant that is new here comes after all others."""
        self._tenants.setdefault(place.tenant, {})[id(place)] = place
        self._length += 1

    def serve(self, place: Place) -> None:
        """It goes: its tenant's turn is over."""
        self.leave(place)
        if place.tenant in self._tenants:
            self._tenants.move_to_end(place.tenant)

    def leave(self, place: Place) -> None:
        """It waits no longer; the others keep their places. Idempotent."""
        places = self._tenants.get(place.tenant, {})
        if places.pop(id(place), None) is None:
            return
        self._length -= 1
        if not places:
            del self._tenants[place.tenant]
