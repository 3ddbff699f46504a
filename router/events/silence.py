"""Replicas whose events stop though they have work: a reason to probe, no verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from router.events.keeper import Watched, Watching
from router.events.trust import Trust
from router.replicas import Pool

_LOOKS_PER_SILENCE: Final = 4
_HEARD: Final = frozenset((Trust.EXACT, Trust.DEGRADED, Trust.CATCHING_UP))


@dataclass(slots=True)
class _Heard:
    """What was seen of one stream so far.

    `since`: the last frame, or the last moment without a request. `patience_s`: silence that is
    no doubt yet. `frames_when_cut`: a connection that is lost again without a frame is no news.
    """

    link_losses: int
    frames_when_cut: int
    frames: int = -1
    since: float = 0.0
    patience_s: float = 0.0


@dataclass(slots=True)
class Silence:
    """Compares each replica's stream of events with the requests that it has.

    An engine that computes publishes blocks; one that hangs or has died does not. An engine
    without requests may be silent for ever, and so may one whose stream has never said anything.
    Slow decoding and a long prefill are silent too: while nothing comes, each doubt waits twice as
    long as the one before, up to `most_s`. A connection that was lost is a doubt at once.
    """

    pool: Pool
    keeper: Watching
    in_flight: Callable[[str], int]
    doubt: Callable[[str], None]
    """Told the replica's id: probe it now."""
    clock: Callable[[], float]
    after_s: float
    most_s: float
    _heard: dict[str, _Heard] = field(default_factory=dict)

    async def watch(self) -> None:
        """Look for as long as the router runs."""
        while True:
            self.look()
            await asyncio.sleep(self.after_s / _LOOKS_PER_SILENCE)

    def look(self) -> None:
        """Once: doubt whoever has fallen silent, or whose stream has been cut."""
        healthy = {member.id for member in self.pool if member.is_healthy}
        self._heard = {name: heard for name, heard in self._heard.items() if name in healthy}
        for name in healthy:
            self._look_at(name)

    def _look_at(self, replica_id: str) -> None:
        watched, now = self.keeper.of(replica_id), self.clock()
        counters = watched.counters
        heard = self._heard.get(replica_id)
        if heard is None:
            heard = self._heard[replica_id] = _Heard(counters.link_losses, 0)
        if counters.frames != heard.frames or not self.in_flight(replica_id):
            heard.frames, heard.since, heard.patience_s = counters.frames, now, self.after_s
        was_cut = counters.link_losses != heard.link_losses
        heard.link_losses = counters.link_losses
        if was_cut and counters.frames != heard.frames_when_cut:
            heard.frames_when_cut = counters.frames
            self.doubt(replica_id)
        elif self._is_followed(watched) and now - heard.since >= heard.patience_s:
            heard.since, heard.patience_s = now, min(2 * heard.patience_s, self.most_s)
            self.doubt(replica_id)

    def _is_followed(self, watched: Watched) -> bool:
        return watched.counters.frames > 0 and watched.trust.trust in _HEARD
