"""Replicas named by a YAML file that may change meanwhile, such as a mounted ConfigMap."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

from router.replicas.replica import Replica

log = logging.getLogger(__name__)

Parse = Callable[[bytes], Collection[Replica]]


class FileDiscovery:
    """Reads the file every `interval_s` and compares: no inotify, which misses network mounts
    and the swap of links that a ConfigMap's update is. A file that can't be read or used leaves
    the replicas as they are. `parse` raises ValueError."""

    def __init__(self, path: Path, parse: Parse, *, interval_s: float) -> None:
        self._path = path
        self._parse = parse
        self._interval_s = interval_s

    async def watch(self) -> AsyncIterator[frozenset[Replica]]:
        seen: bytes | None = None
        complaint = ""
        while True:
            try:
                data = await asyncio.to_thread(self._path.read_bytes)
                if data != seen:
                    seen = data
                    yield frozenset(self._parse(data))
                complaint = ""
            except (OSError, ValueError) as exc:
                if complaint != str(exc):
                    complaint = str(exc)
                    log.warning("replicas stay as they are: %s", complaint)
            await asyncio.sleep(self._interval_s)
