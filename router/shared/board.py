"""In-flight load of all processes of a host, in memory that they share: exact, and at once.

A file (best in /dev/shm) of doubles: for each replica a row, in it a cell for each process. Only
its own process writes a cell; readers add the others up. Times are CLOCK_MONOTONIC: one for all.
"""

import fcntl
import logging
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from router.blocks import BlockHash
from router.index.load import Load
from router.index.reservations import Reservation
from router.replicas import ReplicaId
from router.shared.coming import ComingBoard

log = logging.getLogger(__name__)

ROWS: Final = 1024
"""Most replicas at once."""
SLOTS: Final = 64
"""Most processes."""
_CELL: Final = struct.Struct("8d")
"""The fields of `Load` in their order, and when."""
_NAMES: Final = ROWS * 8
_SIZE: Final = _NAMES + ROWS * SLOTS * _CELL.size
_EMPTY: Final = bytes(_CELL.size)
_NOBODY: Final = bytes(8)


RETRY_S: Final = 1.0
"""Between two attempts to find room for a replica that found none."""


class LoadBoard:
    """One process' view. `slot`: its own, 0 to 63; `processes`: how many there are.

    A row is a replica's for as long as a process has something in it; with none free, rows that
    nobody uses are given to others. So each look makes sure that the row is still the same's.
    """

    def __init__(self, path: Path, slot: int, processes: int, clock: Callable[[], float]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < _SIZE:
            os.ftruncate(self._file, _SIZE)
        self._memory = mmap.mmap(self._file, _SIZE)
        self._slot = slot
        self._others = [number for number in range(processes) if number != slot]
        self._clock = clock
        self._rows: dict[ReplicaId, tuple[int, bytes]] = {}
        self._ids: dict[int, ReplicaId] = {}
        self._retry_at: dict[ReplicaId, float] = {}
        """Replicas that found no room, and when to look again."""
        self._coming = ComingBoard(path.with_suffix(".coming"), slot, processes, SLOTS)
        self.clear(slot)

    @property
    def untold(self) -> int:
        """Replicas for which there is no room: their load is not shared."""
        return len(self._retry_at)

    def write(self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load]) -> None:
        """What we make the replica do has changed. Of more than 1024 replicas nothing is told."""
        if (row := self._row(replica_id)) is None:
            return
        load, at = read(replica_id), self._cell(row, self._slot)
        self._memory[at : at + _CELL.size] = _CELL.pack(
            load.queued_tokens,
            load.wait_ms,
            load.running,
            load.waiting,
            load.recent_ms,
            load.mean_ms,
            load.resident_tokens,
            self._clock(),
        )

    def get(self, replica_id: ReplicaId) -> Load | None:
        """What the other processes make it do. None: nothing."""
        row, now, total = self._row(replica_id), self._clock(), None
        if row is None:
            return None
        for slot in self._others:
            at = self._cell(row, slot)
            if self._memory[at : at + _CELL.size] == _EMPTY:
                continue
            load = _load(_CELL.unpack_from(self._memory, at), now)
            total = load if total is None else total.plus(load)
        return total

    def begin(self, reservation: Reservation) -> None:
        """We sent this: its prefix is coming there."""
        if reservation.prefix and (row := self._row(reservation.replica_id)) is not None:
            self._coming.begin(reservation, row)

    def end(self, reservation: Reservation) -> None:
        """It is over."""
        if reservation.prefix and (row := self._row(reservation.replica_id)) is not None:
            self._coming.end(reservation, row)

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of `prefix` that the others have in flight, by replica."""
        found = self._coming.expected(prefix)
        return {
            replica_id: blocks
            for row, blocks in found.items()
            if (replica_id := self._ids.get(row)) is not None
            and self._is_named(*self._rows[replica_id])
        }

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left, and nothing of ours is in flight there: we need its row no longer."""
        self._retry_at.pop(replica_id, None)
        if (row := self._known(replica_id)) is not None:
            at = self._cell(row, self._slot)
            self._memory[at : at + _CELL.size] = _EMPTY
        self._drop(replica_id)

    def clear(self, slot: int) -> None:
        """A process ended: it makes nobody do anything."""
        self._coming.clear(slot)
        for row in range(ROWS):
            at = self._cell(row, slot)
            self._memory[at : at + _CELL.size] = _EMPTY

    def close(self) -> None:
        self._coming.close()
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _row(self, replica_id: ReplicaId) -> int | None:
        if (row := self._known(replica_id)) is not None:
            return row
        if self._retry_at.get(replica_id, 0.0) > self._clock():
            return None
        name = xxh3_64_intdigest(replica_id.encode()).to_bytes(8, "little")
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            row = self._find_or_claim(name)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        if row is None:
            if replica_id not in self._retry_at:
                log.warning(
                    "no room to share the load of replica %s with other processes", replica_id
                )
            self._retry_at[replica_id] = self._clock() + RETRY_S
            return None
        self._retry_at.pop(replica_id, None)
        self._rows[replica_id], self._ids[row] = (row, name), replica_id
        return row

    def _known(self, replica_id: ReplicaId) -> int | None:
        """Its row, if it still is its row."""
        known = self._rows.get(replica_id)
        if known is None:
            return None
        if self._is_named(*known):
            return known[0]
        self._drop(replica_id)
        return None

    def _drop(self, replica_id: ReplicaId) -> None:
        known = self._rows.pop(replica_id, None)
        if known is not None and self._ids.get(known[0]) == replica_id:
            del self._ids[known[0]]

    def _is_named(self, row: int, name: bytes) -> bool:
        return self._memory[row * 8 : row * 8 + 8] == name

    def _find_or_claim(self, name: bytes) -> int | None:
        first = int.from_bytes(name, "little") % ROWS
        for row in ((first + step) % ROWS for step in range(ROWS)):
            if self._is_named(row, name):
                return row
            if self._is_named(row, _NOBODY):
                self._memory[row * 8 : row * 8 + 8] = name
                return row
        unused = next((row for row in range(ROWS) if self._is_unused(row)), None)
        if unused is not None:
            self._memory[unused * 8 : unused * 8 + 8] = name
        return unused

    def _is_unused(self, row: int) -> bool:
        """Has no process anything in it?"""
        at = self._cell(row, 0)
        return self._memory[at : at + SLOTS * _CELL.size] == _EMPTY * SLOTS

    def _cell(self, row: int, slot: int) -> int:
        return _NAMES + (row * SLOTS + slot) * _CELL.size


def _load(cell: tuple[float, ...], now: float) -> Load:
    queued, wait_ms, running, waiting, recent_ms, mean_ms, resident, at = cell
    told = Load(
        int(queued), wait_ms, int(running), int(waiting), recent_ms, mean_ms, int(resident)
    )  # fmt: skip
    return told.aged(max(0.0, now - at))
