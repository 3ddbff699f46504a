"""In-flight load of all processes of a host, in memory that they share: what matters, at once.

A file (best in /dev/shm) of doubles: for each replica a row, in it a cell for each process. Only
its own process writes a cell; readers add the others up. Times are CLOCK_MONOTONIC: one for all.
"""

import fcntl
import logging
import math
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from router.blocks import BlockHash
from router.index.load import Load
from router.index.reservations import Reservation
from router.replicas import ReplicaId
from router.shared.cells import CELL, NAMES_BYTES, ROWS, SLOTS, Reader, Told, added, load_of
from router.shared.coming import ComingBoard
from router.shared.words import WordBoard

log = logging.getLogger(__name__)

_SIZE: Final = NAMES_BYTES + ROWS * SLOTS * CELL.size
_EMPTY: Final = bytes(CELL.size)
_NOBODY: Final = 0
_NOWHERE: Final = 0, 0
"""Row and name of what has no room: nobody's is that name, or nothing is in its row."""
RETRY_S: Final = 1.0
"""Between two attempts to find room for a replica that found none."""
JUST_NOW_S: Final = 0.001


def _at_once(work: Callable[[], None]) -> None:
    work()


class LoadBoard:
    """One process' view. `slot`: its own, 0 to 63; `processes`: how many there are; `soon`: does
    something when what is being done now is done.

    A row is a replica's for as long as a process has something in it; with none free, rows that
    nobody uses are given to others. So each look makes sure that the row is still the same's.
    """

    is_nobody = False

    def __init__(
        self,
        path: Path,
        slot: int,
        processes: int,
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], object] = _at_once,
    ) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < _SIZE:
            os.ftruncate(self._file, _SIZE)
        self._memory = mmap.mmap(self._file, _SIZE)
        self._names = memoryview(self._memory)[:NAMES_BYTES].cast("Q")
        self._slot = slot
        self._processes = processes
        self._clock, self._soon = clock, soon
        self._changed: dict[ReplicaId, Callable[[ReplicaId], Load]] = {}
        """What the others will be told soon."""
        self._seen: tuple[float, tuple[ReplicaId, ...], Told | None] = -math.inf, (), None
        """What was read last, and when."""
        self._rows: dict[ReplicaId, tuple[int, int]] = {}
        self._ids: dict[int, ReplicaId] = {}
        self._retry_at: dict[ReplicaId, float] = {}
        """Replicas that found no room, and when to look again."""
        self._reader: Reader | None = None
        self._coming = ComingBoard(path.with_suffix(".coming"), slot, processes, SLOTS)
        self._words = WordBoard(path.with_suffix(".words"), slot, processes, SLOTS)
        self.clear(slot)

    @property
    def untold(self) -> int:
        """Replicas for which there is no room: their load is not shared."""
        return len(self._retry_at)

    def write(
        self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load], *, at_once: bool = True
    ) -> None:
        """What we make the replica do has changed. Of more than 1024 replicas nothing is told."""
        if at_once:
            self._changed.pop(replica_id, None)
            self._tell(replica_id, read)
            return
        is_first = not self._changed
        self._changed[replica_id] = read
        if is_first:
            self._soon(self._tell_all)

    def _tell_all(self) -> None:
        changed, self._changed = self._changed, {}
        for replica_id, read in changed.items():
            self._tell(replica_id, read)

    def _tell(self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load]) -> None:
        if (row := self._row(replica_id)) is None:
            return
        load = read(replica_id)
        CELL.pack_into(
            self._memory,
            self._cell(row, self._slot),
            load.queued_tokens,
            load.wait_ms,
            load.running,
            load.waiting,
            load.recent_ms,
            load.mean_ms,
            load.resident_tokens,
            load.queued_pairs,
            self._clock(),
        )

    def get(self, replica_id: ReplicaId) -> Load | None:
        """What the other processes make it do. None: nothing."""
        return load_of(self._told((replica_id,), self._clock()))

    def plus(self, replica_ids: Sequence[ReplicaId], ours: list[Load]) -> list[Load]:
        """See `Siblings`."""
        asked, now = tuple(replica_ids), self._clock()
        told = self._told(asked, now)
        self._seen = now, asked, told
        return added(ours, told)

    def seen(self, replica_id: ReplicaId) -> Load | None:
        """See `Siblings`."""
        at, asked, told = self._seen
        if told is not None and self._clock() - at < JUST_NOW_S and replica_id in asked:
            return load_of(told, asked.index(replica_id))
        return self.get(replica_id)

    def _told(self, asked: tuple[ReplicaId, ...], now: float) -> Told:
        reader = self._open()
        if (found := reader.read(asked, now)) is None:
            rows = [self._row(replica_id) for replica_id in asked]
            named = [self._rows.get(replica_id, _NOWHERE) for replica_id in asked]
            found = reader.read_anew(asked, named, now, keep=None not in rows)
        return found

    def prepare(self) -> None:
        """Load what reading takes: else the first choice would wait for it."""
        self._open()

    @property
    def begun(self) -> int:
        """So many requests with a prefix were sent so far, by all of us."""
        return self._coming.begun

    def turn(self) -> AbstractContextManager[None] | None:
        """See `Siblings`."""
        return self._coming.turn()

    def tell(self, word: bytes) -> None:
        """See `Siblings`."""
        self._words.say(word)

    def hear(self) -> list[bytes]:
        """See `Siblings`."""
        return self._words.hear()

    def begin(self, reservation: Reservation) -> None:
        """We sent this: its prefix is coming there."""
        if not reservation.prefix:
            return
        if not reservation.is_short and (row := self._row(reservation.replica_id)) is not None:
            self._coming.place(reservation, row)
        # last: who has seen it counted sees what is coming
        self._coming.count()

    def end(self, reservation: Reservation) -> None:
        """It is over."""
        if reservation.is_short or not reservation.prefix:
            return
        if (row := self._row(reservation.replica_id)) is not None:
            self._coming.end(reservation, row)

    def expected(self, prefix: Sequence[BlockHash]) -> dict[ReplicaId, int]:
        """Leading blocks of `prefix` that the others have in flight, by replica."""
        self._open()
        return {
            replica_id: blocks
            for row, blocks in self._coming.expected(prefix).items()
            if (replica_id := self._ids.get(row)) is not None
            and self._known(replica_id) is not None
        }

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left, and nothing of ours is in flight there: we need its row no longer."""
        self._retry_at.pop(replica_id, None)
        self._changed.pop(replica_id, None)
        if (row := self._known(replica_id)) is not None:
            at = self._cell(row, self._slot)
            self._memory[at : at + CELL.size] = _EMPTY
        self._drop(replica_id)

    def clear(self, slot: int) -> None:
        """A process ended: it makes nobody do anything."""
        self._coming.clear(slot)
        for row in range(ROWS):
            at = self._cell(row, slot)
            self._memory[at : at + CELL.size] = _EMPTY

    def close(self) -> None:
        self._changed.clear()
        self._coming.close()
        self._words.close()
        self._names.release()
        self._reader = None
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _open(self) -> Reader:
        if self._reader is None:
            self._reader = Reader(self._memory, self._slot, self._processes)
        return self._reader

    def _row(self, replica_id: ReplicaId) -> int | None:
        if (row := self._known(replica_id)) is not None:
            return row
        if self._retry_at.get(replica_id, 0.0) > self._clock():
            return None
        name = xxh3_64_intdigest(replica_id.encode())
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
        if (known := self._rows.get(replica_id)) is None:
            return None
        row, name = known
        if self._names[row] == name:
            return row
        self._drop(replica_id)
        return None

    def _drop(self, replica_id: ReplicaId) -> None:
        known = self._rows.pop(replica_id, None)
        if known is not None and self._ids.get(known[0]) == replica_id:
            del self._ids[known[0]]

    def _find_or_claim(self, name: int) -> int | None:
        names = self._names
        for row in ((name + step) % ROWS for step in range(ROWS)):
            if names[row] == name:
                return row
            if names[row] == _NOBODY:
                names[row] = name
                return row
        unused = next((row for row in range(ROWS) if self._is_unused(row)), None)
        if unused is not None:
            names[unused] = name
        return unused

    def _is_unused(self, row: int) -> bool:
        """Has no process anything in it?"""
        at = self._cell(row, 0)
        return self._memory[at : at + SLOTS * CELL.size] == _EMPTY * SLOTS

    def _cell(self, row: int, slot: int) -> int:
        return NAMES_BYTES + (row * SLOTS + slot) * CELL.size
