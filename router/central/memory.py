"""The central index's memory, read in place by the routers of its host.

The index is one array with a version in it, odd while something is written. Who finds it even, and
the same again afterwards, has read what was true. Nobody is woken up for it, and nobody waits.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from router.blocks import BlockHash
from router.compiled import Cells, compile_all
from router.index import kernels
from router.index.arena import halves
from router.index.layout import LAYOUT, MAGIC, MAX_SLOTS, VERSION

CAN_SHARE: Final = hasattr(os, "memfd_create") and platform.machine() in ("x86_64", "AMD64")
"""Where stores are seen in the order in which they were made, without further ado."""
PATIENCE_S: Final = 0.0003
"""So long it is read again when it was written meanwhile; then it is asked."""
_LAYOUT, _MAGIC, _VERSION = int(LAYOUT), int(MAGIC), int(VERSION)


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a process of this host finds it. `device`, `inode`: that it is really this file, for
    a process' number may mean another one in another container."""

    path: str
    device: int
    inode: int


class SharedMemory:
    """Memory of a file without a name: whoever is killed, nothing is left of it."""

    def __init__(self) -> None:
        self._file = os.memfd_create("warmgate-index", os.MFD_CLOEXEC)

    def allocate(self, size: int) -> mmap.mmap:
        """So many bytes, zeros, which take no memory before they are written to. Once."""
        os.ftruncate(self._file, size)
        return mmap.mmap(self._file, size)

    @property
    def place(self) -> Place:
        told = os.fstat(self._file)
        return Place(f"/proc/{os.getpid()}/fd/{self._file}", told.st_dev, told.st_ino)

    def close(self) -> None:
        """Whoever has mapped it keeps it."""
        os.close(self._file)


class Window:
    """Another process' index. OSError, ValueError: it is not there, or of another version."""

    def __init__(self, place: Place) -> None:
        file = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            told = os.fstat(file)
            if (told.st_dev, told.st_ino) != (place.device, place.inode):
                raise ValueError(f"{place.path} is another file here")
            # a copy for whoever writes: here nobody does, but compiled code wants that it could
            self._memory = mmap.mmap(file, told.st_size, access=mmap.ACCESS_COPY)
        finally:
            os.close(file)
        self._cells: Cells = np.frombuffer(self._memory, np.uint32)
        self._header = memoryview(self._memory).cast("I")[: _VERSION + 1]
        if int(self._cells[_MAGIC]) != _LAYOUT:
            raise ValueError("the central index is laid out in another way")
        self._found: Cells = np.empty(3 * int(MAX_SLOTS) + 2, np.uint32)

    def match(self, prefix: Sequence[BlockHash]) -> list[tuple[int, int]] | None:
        """Replicas' numbers, and how many leading blocks each holds. None: it is being written."""
        keys, header = halves(prefix), self._header
        gives_up_at = 0.0
        while True:
            before = header[_VERSION]
            if not before & 1:
                count = kernels.match(self._cells, keys, self._found)
                if header[_VERSION] == before and count >= 0:
                    flat = self._found[: 2 * count].tolist()
                    return list(zip(flat[::2], flat[1::2], strict=True))
            now = time.monotonic()
            gives_up_at = gives_up_at or now + PATIENCE_S
            if now >= gives_up_at:
                return None


def prepare() -> None:
    """What a `Window` needs that takes a while the first time."""
    compile_all()
