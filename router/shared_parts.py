"""What the section `shared` of the settings asks for, beside load."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from router.config import ConfigError
from router.events.keeper import Keeper
from router.events.snapshot import BYTES_A_BLOCK, FORMAT, encode_in_turns
from router.index.siblings import NoNotes, SiblingNotes
from router.replicas import Pool
from router.settings import SharedSettings
from router.shared import (
    MemoryOwners,
    NoteBoard,
    Owners,
    Peers,
    RedisOwners,
    RedisStore,
    SharedSnapshots,
    SnapshotLimits,
    StoreFailed,
    connect,
)
from router.supervise import Supervisor
from router.tenants import RedisLedger

LATE_S: Final = 1.0
"""What Redis answers on budgets so late is still known to have been booked."""
MEGABYTES_S: Final = 1.0
"""Longest wait for the next answer of Redis where megabytes are moved; no request waits there."""


def notes(
    settings: SharedSettings, pool: Pool, stack: AsyncExitStack
) -> tuple[SiblingNotes, SiblingNotes]:
    """Where sessions and where stored responses are, as the processes of this host know it.
    ConfigError."""
    if settings.board is None:
        return NoNotes(), NoNotes()
    board = Path(settings.board)

    def open_one(what: str, entries: int) -> NoteBoard:
        place = board.with_suffix(f".{what}"), settings.slot, settings.processes
        one = NoteBoard(*place, entries, lambda: [member.id for member in pool])
        stack.callback(one.close)
        return one

    try:
        sessions = open_one("sessions", settings.max_sessions)
        return sessions, open_one("responses", settings.max_responses)
    except OSError as exc:
        raise ConfigError(f"shared.board: {exc}") from exc


def owners(
    settings: SharedSettings, peers: Peers, host: SiblingNotes, supervisor: Supervisor
) -> Owners:
    """Which replicas keep stored responses; of all routers, where they share a Redis."""
    own = MemoryOwners(peers.clock, settings.responses_ttl_s, settings.max_responses, host)
    if not isinstance(store := peers.store, RedisStore):
        return own
    shared = RedisOwners(own, store, store.deadline_s)
    supervisor.run("responses", shared.work)
    return shared


def ledger(settings: SharedSettings, peers: Peers, supervisor: Supervisor) -> RedisLedger:
    """Budgets of all routers, over a connection of their own: requests wait no longer than the
    deadline, but answers that come later still count."""
    store = RedisStore(connect(settings.url or "", LATE_S), settings.prefix, LATE_S)
    deadline_s = settings.deadline_ms / 1e3
    made = RedisLedger(
        *(peers.router_id, store, deadline_s, lambda: peers.routers, time.time),
        wipes=lambda: peers.wipes,
    )

    async def work() -> None:
        try:
            await made.work()
        finally:
            with suppress(StoreFailed):
                await store.aclose()

    supervisor.run("budgets", work)
    return made


async def read_index(settings: SharedSettings) -> bytes | None:
    """A snapshot of the index that another router has left in Redis."""
    if settings.url is None:
        return None
    async with _snapshots(settings, settings.url) as snapshots:
        return await snapshots.read()


def keep_index(settings: SharedSettings, keeper: Keeper, supervisor: Supervisor) -> None:
    """Leave one there now and then, for routers that start."""
    if (url := settings.url) is None or not settings.snapshot_max_bytes:
        return

    async def take() -> bytes:
        most = settings.snapshot_max_bytes // BYTES_A_BLOCK
        return await encode_in_turns(await keeper.snapshot(most))

    async def work() -> None:
        async with _snapshots(settings, url) as snapshots:
            await snapshots.keep(take)

    supervisor.run("shared-index", work)


@asynccontextmanager
async def _snapshots(settings: SharedSettings, url: str) -> AsyncIterator[SharedSnapshots]:
    store = RedisStore(connect(url, MEGABYTES_S), settings.prefix, MEGABYTES_S)
    limits = SnapshotLimits(settings.snapshot_max_bytes, settings.snapshot_interval_s)
    try:
        yield SharedSnapshots(store, secrets.token_hex(8), FORMAT, limits)
    finally:
        with suppress(StoreFailed):
            await store.aclose()
