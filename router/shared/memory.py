"""Routers in one process: tests, and the simulator."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from router.shared.protocol import Exchange, Notes


@dataclass(slots=True)
class MemoryStore:
    """Reports in a dictionary, each with the time when it is void."""

    clock: Callable[[], float]
    _reports: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    _notes: list[bytes] = field(default_factory=list)
    _listeners: list[Callable[[bytes], None]] = field(default_factory=list)

    async def exchange(self, router_id: str, report: bytes, ttl_s: float) -> Exchange:
        now = self.clock()
        self._reports = {i: r for i, r in self._reports.items() if r[0] > now}
        was_known = router_id in self._reports
        self._reports[router_id] = (now + ttl_s, report)
        others = {i: data for i, (_, data) in self._reports.items() if i != router_id}
        return Exchange(others, was_known)

    async def trade(self, note: bytes | None, since: str, ttl_s: float) -> Notes:
        if note is not None:
            self._notes.append(note)
        return Notes(self._notes[int(since) :], str(len(self._notes)))

    async def publish(self, news: bytes) -> None:
        for hear in list(self._listeners):
            hear(news)

    async def listen(self, hear: Callable[[bytes], None], ready: Callable[[], None]) -> None:
        self._listeners.append(hear)
        try:
            ready()
            await asyncio.get_running_loop().create_future()
        finally:
            self._listeners.remove(hear)

    async def leave(self, router_id: str) -> None:
        self._reports.pop(router_id, None)

    async def aclose(self) -> None:
        """Nothing is open."""
