"""In-flight load of all processes of a host, in memory that they share: exact, and at once.

A file (best in /dev/shm) of doubles: for each replica a row, in it a cell for each process. Only
its own process writes a cell; readers add the others up. Times are CLOCK_MONOTONIC: one for all.
"""

import fcntl
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

ROWS: Final = 1024
"""Most replicas, those that left included."""
SLOTS: Final = 64
"""Most processes."""
_CELL: Final = struct.Struct("8d")
"""The fields of `Load` in their order, and when."""
_NAMES: Final = ROWS * 8
_SIZE: Final = _NAMES + ROWS * SLOTS * _CELL.size
_EMPTY: Final = bytes(_CELL.size)


class LoadBoard:
    """One process' view. `slot`: its own, 0 to 63; `processes`: how many there are."""

    def __init__(self, path: Path, slot: int, processes: int, clock: Callable[[], float]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < _SIZE:
            os.ftruncate(self._file, _SIZE)
        self._memory = mmap.mmap(self._file, _SIZE)
        self._slot = slot
        self._others = [number for number in range(processes) if number != slot]
        self._clock = clock
        self._rows: dict[ReplicaId, int | None] = {}
        self._ids: dict[int, ReplicaId] = {}
        self._coming = ComingBoard(path.with_suffix(".coming"), slot, processes, SLOTS)
        self.clear(slot)

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
        return {self._ids[row]: blocks for row, blocks in found.items() if row in self._ids}

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
        row = self._rows.get(replica_id)
        if row is None and replica_id not in self._rows:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                row = self._rows[replica_id] = self._find_or_claim(replica_id)
                if row is not None:
                    self._ids[row] = replica_id
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
        return row

    def _find_or_claim(self, replica_id: ReplicaId) -> int | None:
        name = xxh3_64_intdigest(replica_id.encode()).to_bytes(8, "little")
        first = int.from_bytes(name, "little") % ROWS
        for row in ((first + step) % ROWS for step in range(ROWS)):
            found = self._memory[row * 8 : row * 8 + 8]
            if found == name:
                return row
            if found == bytes(8):
                self._memory[row * 8 : row * 8 + 8] = name
                return row
        return None

    def _cell(self, row: int, slot: int) -> int:
        return _NAMES + (row * SLOTS + slot) * _CELL.size


def _load(cell: tuple[float, ...], now: float) -> Load:
    queued, wait_ms, running, waiting, recent_ms, mean_ms, resident, at = cell
    told = Load(
        int(queued), wait_ms, int(running), int(waiting), recent_ms, mean_ms, int(resident)
    )  # fmt: skip
    return told.aged(max(0.0, now - at))
