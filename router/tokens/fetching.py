"""Models without a directory get their tokenizer from a replica, and no request waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from router.tokens.files import NoModelFiles
from router.tokens.model_dir import UnusableModelDir
from router.tokens.template import BadTemplate

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
AGAIN_S: Final = 30.0
"""A replica that had no files is asked again after so long: it may be another release by then."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A replica that can be asked: its address, its base model, all names that it serves."""

    url: str
    model: str
    names: tuple[str, ...]


class Files(Protocol):
    async def fetch(self, url: str) -> Path:
        """NoModelFiles, OSError."""
        ...


class Fetcher:
    """`serving`: replicas that are up now. `is_known`: whether a name has its tokenizer.
    `install`: UnusableModelDir, BadTemplate. `max_models`: so many base models, then no more."""

    def __init__(
        self,
        files: Files,
        serving: Callable[[], Iterable[Serving]],
        is_known: Callable[[str], bool],
        install: Callable[[Path, tuple[str, ...]], Awaitable[None]],
        max_models: int,
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._serving = serving
        self._is_known = is_known
        self._install = install
        self._room = max_models
        self._clock = clock
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Fetch for each replica whose model has no tokenizer yet."""
        now = self._clock()
        self._not_before = {url: at for url, at in self._not_before.items() if at > now}
        for replica in list(self._serving()):
            names = tuple(name for name in replica.names if not self._is_known(name))
            if names and self._room > 0 and replica.url not in self._not_before:
                await self._fetch(replica, names)

    async def _fetch(self, replica: Serving, names: tuple[str, ...]) -> None:
        try:
            directory = await self._files.fetch(replica.url)
            await self._install(directory, names)
        except (NoModelFiles, UnusableModelDir, BadTemplate, OSError) as exc:
            self._not_before[replica.url] = self._clock() + AGAIN_S
            log.info("no tokenizer for %s from a replica: %s", replica.model, exc)
            return
        self._room -= 1
        log.info("prompts of %s are tokenized by its replica's files", ", ".join(names))
