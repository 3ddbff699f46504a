"""What is known before this router has followed anybody: a sibling's index, or a file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from router.events.snapshot import ReplicaSnapshot, UnreadableSnapshot, decode_snapshot

SNAPSHOT_PATH: Final = "/internal/snapshot"
log = logging.getLogger(__name__)


async def _nothing() -> bytes | None:
    return None


async def gather_seeds(
    session: aiohttp.ClientSession,
    siblings: Sequence[str],
    file: str | None,
    timeout_s: float,
    shared: Callable[[], Awaitable[bytes | None]] = _nothing,
) -> dict[str, ReplicaSnapshot]:
    """The first sibling's snapshot that can be had, else what `shared` gives, else the file's, else
    nothing (and a line)."""
    for url in siblings:
        try:
            return decode_snapshot(await _fetch(session, url, timeout_s))
        except (aiohttp.ClientError, TimeoutError, UnreadableSnapshot) as exc:
            log.warning("no snapshot from sibling %s: %s", url, str(exc) or type(exc).__name__)
    try:
        async with asyncio.timeout(timeout_s):
            raw = await shared()
        if raw is not None:
            return decode_snapshot(raw)
    except (TimeoutError, UnreadableSnapshot) as exc:
        log.warning("no snapshot from Redis: %s", str(exc) or type(exc).__name__)
    if file is not None:
        try:
            return decode_snapshot(await asyncio.to_thread(Path(file).read_bytes))
        except FileNotFoundError:
            log.info("no snapshot in %s yet", file)
        except (OSError, UnreadableSnapshot) as exc:
            log.warning("no snapshot in %s: %s", file, exc)
    return {}


async def _fetch(session: aiohttp.ClientSession, url: str, timeout_s: float) -> bytes:
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with session.get(url.rstrip("/") + SNAPSHOT_PATH, timeout=timeout) as response:
        response.raise_for_status()
        return await response.read()
