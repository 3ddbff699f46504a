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
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from router.blocks import BlockHash
from router.compiled import NEIGHBOURS, compile_all
from router.index import neighbours
from router.index.load import Load
from router.index.reservations import Reservation
from router.replicas import ReplicaId
from router.shared.coming import ComingBoard
from router.shared.words import WordBoard

log = logging.getLogger(__name__)

ROWS: Final = 1024
"""Most replicas at once."""
SLOTS: Final = 64
"""Most processes."""
_CELL: Final = struct.Struct(f"{neighbours.COLUMNS}d")
"""The fields of `Load` in their order, and when: the columns that `neighbours` names."""
_NAMES: Final = ROWS * 8
_SIZE: Final = _NAMES + ROWS * SLOTS * _CELL.size
_EMPTY: Final = bytes(_CELL.size)
_NOBODY: Final = 0
_NOWHERE: Final = 0, 0
"""Row and name of what has no room: nobody's is that name, or nothing is in its row."""


RETRY_S: Final = 1.0
"""Between two attempts to find room for a replica that found none."""
QUERIES: Final = 64
"""Different lists of replicas for which it is kept where they are."""


class LoadBoard:
    """One process' view. `slot`: its own, 0 to 63; `processes`: how many there are.

    A row is a replica's for as long as a process has something in it; with none free, rows that
    nobody uses are given to others. So each look makes sure that the row is still the same's.
    """

    is_nobody = False

    def __init__(self, path: Path, slot: int, processes: int, clock: Callable[[], float]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < _SIZE:
            os.ftruncate(self._file, _SIZE)
        self._memory = mmap.mmap(self._file, _SIZE)
        self._names = memoryview(self._memory)[:_NAMES].cast("Q")
        self._slot = slot
        self._processes = processes
        self._clock = clock
        self._rows: dict[ReplicaId, tuple[int, int]] = {}
        self._ids: dict[int, ReplicaId] = {}
        self._retry_at: dict[ReplicaId, float] = {}
        """Replicas that found no room, and when to look again."""
        self._reader: _Reader | None = None
        self._coming = ComingBoard(path.with_suffix(".coming"), slot, processes, SLOTS)
        self._words = WordBoard(path.with_suffix(".words"), slot, processes, SLOTS)
        self.clear(slot)

    @property
    def untold(self) -> int:
        """Replicas for which there is no room: their load is not shared."""
        return len(self._retry_at)

    def write(self, replica_id: ReplicaId, read: Callable[[ReplicaId], Load]) -> None:
        """What we make the replica do has changed. Of more than 1024 replicas nothing is told."""
        if (row := self._row(replica_id)) is None:
            return
        load = read(replica_id)
        _CELL.pack_into(
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
        return self.loads((replica_id,))[0]

    def loads(self, replica_ids: Sequence[ReplicaId]) -> list[Load | None]:
        """The same of each, in their order."""
        reader, asked = self._open(), tuple(replica_ids)
        found = reader.read(asked, self._clock())
        if found is None:
            rows = [self._row(replica_id) for replica_id in asked]
            named = [self._rows.get(replica_id, _NOWHERE) for replica_id in asked]
            found = reader.read_anew(asked, named, self._clock(), keep=None not in rows)
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
        if reservation.prefix and (row := self._row(reservation.replica_id)) is not None:
            self._coming.begin(reservation, row)

    def end(self, reservation: Reservation) -> None:
        """It is over."""
        if reservation.prefix and (row := self._row(reservation.replica_id)) is not None:
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
        self._words.close()
        self._names.release()
        self._reader = None
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _open(self) -> "_Reader":
        if self._reader is None:
            self._reader = _Reader(self._memory, self._slot, self._processes)
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
        return self._memory[at : at + SLOTS * _CELL.size] == _EMPTY * SLOTS

    def _cell(self, row: int, slot: int) -> int:
        return _NAMES + (row * SLOTS + slot) * _CELL.size


class _Reader:
    """Adds up what the others have in their cells, for many replicas in one compiled step.

    Where a list of replicas has its rows is kept: a fleet asks for the same list again and again.
    """

    def __init__(self, memory: mmap.mmap, slot: int, processes: int) -> None:
        compile_all(NEIGHBOURS)
        self._names = np.frombuffer(memory, np.uint64, ROWS)
        cells = np.frombuffer(memory, np.float64, offset=_NAMES)
        self._cells = cells.reshape(ROWS, SLOTS, _CELL.size // 8)[:, :processes]
        self._slot = slot
        self._kept: dict[tuple[ReplicaId, ...], tuple[neighbours.Words, neighbours.Numbers]] = {}

    def read(self, asked: tuple[ReplicaId, ...], now: float) -> list[Load | None] | None:
        """None: it is not known where they are, or one is elsewhere now."""
        kept = self._kept.get(asked)
        if kept is None or self._add_up(*kept, now):
            return None
        return _loads(kept[1])

    def read_anew(
        self,
        asked: tuple[ReplicaId, ...],
        named: Sequence[tuple[int, int]],
        now: float,
        *,
        keep: bool,
    ) -> list[Load | None]:
        """`named`: their rows and names. Whoever's row is another's by now has nothing to do."""
        count = len(named)
        found = np.empty((count, neighbours.COLUMNS))
        where = np.array(named, np.uint64).reshape(count, 2), found
        if keep:
            if len(self._kept) >= QUERIES:
                self._kept.clear()
            self._kept[asked] = where
        self._add_up(*where, now)
        return _loads(where[1])

    def _add_up(self, asked: neighbours.Words, found: neighbours.Numbers, now: float) -> int:
        return neighbours.add_up(self._cells, self._names, asked, self._slot, now, found)


def _loads(found: neighbours.Numbers) -> list[Load | None]:
    return [
        Load(
            int(queued), wait_ms, int(running), int(waiting), recent_ms, mean_ms, int(resident),
            queued_pairs=int(pairs),
        )
        if told
        else None
        for queued, wait_ms, running, waiting, recent_ms, mean_ms, resident, pairs, told
        in found.tolist()
    ]  # fmt: skip
