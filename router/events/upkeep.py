"""What the index needs beside events: room given back in time, and a copy on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from router.events.keeper import Keeper
from router.events.snapshot import encode_in_turns, write_snapshot

_TIDY_EVERY_S: Final = 0.01
_LOOK_EVERY_S: Final = 0.5
log = logging.getLogger(__name__)


class UntidyIndex(Protocol):
    """An index that forgets at once and cleans up later."""

    @property
    def is_untidy(self) -> bool:
        """Is there something to clean up?"""
        ...

    def tidy(self) -> None:
        """Do a little of it: at most a few milliseconds."""
        ...


@dataclass(slots=True)
class Upkeep:
    """Tasks for as long as the router runs."""

    index: UntidyIndex
    keeper: Keeper
    snapshot_file: str | None
    snapshot_interval_s: float

    def start(
        self,
        run: Callable[[str, Callable[[], Awaitable[None]]], None],
        at_the_end: Callable[[Callable[[], Awaitable[None]]], object],
    ) -> None:
        """Give each task to whoever runs them under a name, and a last one for the end."""
        at_the_end(self.save_once)
        run("tidy", self.tidy)
        run("snapshot", self.save)

    async def tidy(self) -> None:
        """Clean up behind cleared and departed replicas, in slices."""
        while True:
            self.index.tidy()
            await asyncio.sleep(_TIDY_EVERY_S if self.index.is_untidy else _LOOK_EVERY_S)

    async def save(self) -> None:
        """Write a snapshot now and then, if there is a file for it."""
        while self.snapshot_file is not None:
            await asyncio.sleep(self.snapshot_interval_s)
            await self.save_once()

    async def save_once(self) -> None:
        """Write a snapshot. A file that can't be written costs a log line."""
        if self.snapshot_file is None:
            return
        raw = await encode_in_turns(await self.keeper.snapshot())
        try:
            await asyncio.to_thread(write_snapshot, Path(self.snapshot_file), raw)
        except OSError as exc:
            log.warning("no snapshot written: %s", exc)
