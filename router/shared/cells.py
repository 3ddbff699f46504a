"""The cells of a host's load: what they hold, and how those of the others are read.

For each replica there is a row, in it a cell for each process. Only its own process writes a cell.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from router.compiled import NEIGHBOURS, compile_all
from router.index import neighbours
from router.index.load import Load
from router.replicas import ReplicaId

ROWS: Final = 1024
"""Most replicas at once."""
SLOTS: Final = 64
"""Most processes."""
CELL: Final = Struct(f"{neighbours.COLUMNS}d")
"""The fields of `Load` in their order, and when: the columns that `neighbours` names."""
NAMES_BYTES: Final = ROWS * 8
"""Before the first row: whose row each is."""
QUERIES: Final = 64
"""Different lists of replicas for which it is kept where they are."""

Told: TypeAlias = memoryview
"""For each replica the columns of a cell, added up; the last says how many processes told of it.
The same list of replicas is read into the same place."""


class Reader:
    """Adds up what the others have in their cells, for many replicas in one compiled step.

    Where a list of replicas has its rows is kept: a fleet asks for the same list again and again.
    """

    def __init__(self, memory: mmap.mmap, slot: int, processes: int) -> None:
        compile_all(NEIGHBOURS)
        self._names = np.frombuffer(memory, np.uint64, ROWS)
        cells = np.frombuffer(memory, np.float64, offset=NAMES_BYTES)
        self._cells = cells.reshape(ROWS, SLOTS, neighbours.COLUMNS)[:, :processes]
        self._slot = slot
        self._kept: dict[tuple[ReplicaId, ...], _Place] = {}

    def read(self, asked: tuple[ReplicaId, ...], now: float) -> Told | None:
        """None: it is not known where they are, or one is elsewhere now."""
        kept = self._kept.get(asked)
        if kept is None or self._add_up(kept, now):
            return None
        return kept.told

    def read_anew(
        self,
        asked: tuple[ReplicaId, ...],
        named: Sequence[tuple[int, int]],
        now: float,
        *,
        keep: bool,
    ) -> Told:
        """`named`: their rows and names. Whoever's row is another's by now has nothing to do."""
        count = len(named)
        found = np.empty((count, neighbours.COLUMNS))
        place = _Place(np.array(named, np.uint64).reshape(count, 2), found, found.data)
        if keep:
            if len(self._kept) >= QUERIES:
                self._kept.clear()
            self._kept[asked] = place
        self._add_up(place, now)
        return place.told

    def _add_up(self, place: _Place, now: float) -> int:
        where, found, _ = place
        return neighbours.add_up(self._cells, self._names, where, self._slot, now, found)


class _Place(NamedTuple):
    """Rows and names of a list of replicas, and what is found of each."""

    where: neighbours.Words
    found: neighbours.Numbers
    told: Told


def load_of(told: Told, number: int = 0) -> Load | None:
    """Of one of them. None: nobody told of it."""
    found = CELL.unpack_from(told, number * CELL.size)
    queued, wait_ms, running, waiting, recent_ms, mean_ms, resident, pairs, tellers = found
    if not tellers:
        return None
    return Load(
        int(queued), wait_ms, int(running), int(waiting), recent_ms, mean_ms, int(resident),
        queued_pairs=int(pairs),
    )  # fmt: skip


def added(ours: Sequence[Load], told: Told) -> list[Load]:
    """`Load.plus` of each, without an object between: this is on every request's path."""
    return [
        Load(
            own.queued_tokens + int(queued),
            own.wait_ms + wait_ms,
            own.running + int(running),
            own.waiting + int(waiting),
            own.recent_ms + recent_ms,
            own.mean_ms if own.mean_ms > mean_ms else mean_ms,
            own.resident_tokens + int(resident),
            0.0,
            own.queued_pairs + int(pairs),
            own.late,
        )
        if tellers
        else own
        for own, (
            queued, wait_ms, running, waiting, recent_ms, mean_ms, resident, pairs, tellers,
        ) in zip(ours, CELL.iter_unpack(told), strict=True)
    ]  # fmt: skip
