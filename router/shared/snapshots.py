"""The index in Redis, for a router that starts when no sibling answers."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from router.shared.protocol import StoreFailed
from router.shared.redis_store import RedisStore

log = logging.getLogger(__name__)

LEVEL: Final = 1
"""Most of it are hashes, which nothing makes smaller."""
LIVES: Final = 10
"""Intervals until a snapshot that nobody renews is gone: engines replay no older past anyway."""
SHORTEST_LIFE_S: Final = 60.0
UNPACKED: Final = 8
"""What is read may unpack to so many times the bound: others' mistakes must not fill our memory."""

# One router writes in each interval: whoever comes first.
_TURN: Final = """
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
"""


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """`max_bytes`: of a snapshot, packed; 0: there are none. `interval_s`: between two of them."""

    max_bytes: int
    interval_s: float


@dataclass(slots=True)
class SharedSnapshots:
    """`store`: with a deadline that fits megabytes. `format`: part of the key, so that routers of
    versions that do not read each other's each find their own.
    """

    store: RedisStore
    router_id: str
    format: int
    limits: SnapshotLimits

    @property
    def key(self) -> str:
        return self.store.key("index", str(self.format))

    async def read(self) -> bytes | None:
        """The latest, unpacked. None: there is none, or it can't be had."""
        if not self.limits.max_bytes:
            return None
        try:
            packed = await self.store.get(self.key)
        except StoreFailed as exc:
            log.warning("no snapshot from Redis: %s", exc)
            return None
        if packed is None:
            return None
        try:
            return await asyncio.to_thread(_unpack, packed, UNPACKED * self.limits.max_bytes)
        except (zlib.error, ValueError) as exc:
            log.warning("no snapshot from Redis: %s", exc)
            return None

    async def keep(self, take: Callable[[], Awaitable[bytes]]) -> None:
        """Write what `take` gives whenever it is this router's turn, until cancelled."""
        while self.limits.max_bytes:
            await asyncio.sleep(self.limits.interval_s)
            await self.write(take)

    async def write(self, take: Callable[[], Awaitable[bytes]]) -> bool:
        """If it is this router's turn. Whether it was written; failing costs a line in the log."""
        interval_ms = round(self.limits.interval_s * 900)
        try:
            turn = [self.store.key("index", "turn", str(self.format))]
            if not await self.store.run(_TURN, turn, self.router_id, interval_ms):
                return False
            packed = await asyncio.to_thread(zlib.compress, await take(), LEVEL)
            if len(packed) > self.limits.max_bytes:
                log.info("no snapshot to Redis: %d bytes are too many", len(packed))
                return False
            life_s = max(SHORTEST_LIFE_S, LIVES * self.limits.interval_s)
            await self.store.put(self.key, packed, life_s)
        except StoreFailed as exc:
            log.warning("no snapshot to Redis: %s", exc)
            return False
        return True


def _unpack(packed: bytes, max_bytes: int) -> bytes:
    """ValueError: it would be too much."""
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(packed, max_bytes)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"unpacked it has more than {max_bytes} bytes, or not all of it came")
    return raw
