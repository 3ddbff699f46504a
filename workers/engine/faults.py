"""What can be made to go wrong: lost, late, doubled and swapped events; failing HTTP."""

from random import Random
from typing import Annotated, Final

import msgspec
from msgspec import Meta

Chance = Annotated[float, Meta(ge=0.0, le=1.0)]


class EventFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chances per batch of events. Lost batches keep their number, so a gap shows."""

    lose: Chance = 0.0
    lose_from_replay: bool = False
    """Lost batches are missing in the replay buffer as well."""
    duplicate: Chance = 0.0
    reorder: Chance = 0.0
    """The batch is sent after the one that follows it."""
    delay_ms: Annotated[float, Meta(ge=0.0)] = 0.0
    """Wall time between a step's end and its batch."""


class HttpFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chances per generation request, tried in this order."""

    error: Chance = 0.0
    error_status: Annotated[int, Meta(ge=400, le=599)] = 503
    stall: Chance = 0.0
    """The reply stops for good after `after_tokens` tokens, the connection stays open."""
    reset: Chance = 0.0
    """The connection is reset after `after_tokens` tokens (0: before the status line)."""
    after_tokens: Annotated[int, Meta(ge=0)] = 0


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is wrong with an engine. The default is a healthy one."""

    events: EventFaults = EventFaults()
    http: HttpFaults = HttpFaults()


HEALTHY: Final = Faults()


def parse_faults(raw: bytes | str) -> Faults:
    """Faults from JSON. ValueError says what is wrong with it."""
    try:
        return msgspec.json.decode(raw or b"{}", type=Faults)
    except msgspec.DecodeError as exc:
        raise ValueError(f"faults: {exc}") from exc


class FaultPlan:
    """The faults in force now, and the dice."""

    def __init__(self, faults: Faults, rng: Random) -> None:
        self.current = faults
        self._rng = rng

    def strikes(self, chance: float) -> bool:
        """Whether a fault of this chance happens this time."""
        return chance > 0.0 and self._rng.random() < chance
