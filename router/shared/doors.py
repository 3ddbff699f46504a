"""Which processes of a host accept connections now, in memory that they share."""

import mmap
import os
from contextlib import suppress
from pathlib import Path

_SHUT = b"\0"
_OPEN = b"\1"


def doors_of(board: str) -> Path:
    """The file beside that of the load."""
    return Path(board).with_suffix(".doors")


class Doors:
    """A byte for each slot. Each process writes its own; the supervisor shuts those that died."""

    def __init__(self, path: Path, processes: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < processes:
            os.ftruncate(self._file, processes)
        self._memory = mmap.mmap(self._file, processes)
        self._processes = processes

    def open(self, slot: int) -> None:
        """It accepts."""
        self._memory[slot : slot + 1] = _OPEN

    def shut(self, slot: int) -> None:
        """It accepts no more."""
        self._memory[slot : slot + 1] = _SHUT

    def is_open(self, slot: int) -> bool:
        return self._memory[slot : slot + 1] == _OPEN

    def keeper_of(self, slot: int) -> int | None:
        """Who accepts what comes to a slot: itself, else the next one that accepts at all."""
        for step in range(self._processes):
            one = (slot + step) % self._processes
            if self.is_open(one):
                return one
        return None

    def close(self) -> None:
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)
