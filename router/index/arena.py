"""The memory of the index: one array, whose layout is `layout`, and what changes it (`kernels`,
`sweeping`)."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import numpy as np

from router.blocks.hashing import HASH_CODE
from router.compiled import Cells, compile_all
from router.index import kernels
from router.index.layout import FRESH, LOST, PRESSED, UNIT, UNIT_BYTES, UNITS, USED, VERSION

P = ParamSpec("P")
T = TypeVar("T")
Allocate: TypeAlias = Callable[[int], mmap.mmap]
"""Takes a number of bytes, gives so many zeros, which need not take memory before they are
written to."""

AT_LEAST_UNITS: Final = 16
_LOW_SHARE: Final = 64
_LOW_AT_LEAST: Final = 2
_HUGE_FROM_UNITS: Final = 512
"""From here on (4 MiB) the memory is asked for in pages of 2 MiB: entries lie anywhere, and with
small pages half of the time of a look goes into finding the page."""
_CELL: Final = np.dtype(np.uint32)
_VERSION_BITS: Final = 2**32 - 1


class Arena:
    """`max_bytes` (at least 128 KiB) bounds what it takes. Addresses for all of it are reserved at
    the start, so growing moves nothing; what was never used takes no memory."""

    def __init__(self, max_bytes: int, allocate: Allocate | None = None) -> None:
        compile_all()
        units = max(max_bytes // UNIT_BYTES, AT_LEAST_UNITS)
        self._memory = (allocate or reserve)(units * UNIT_BYTES)
        self.cells: Cells = np.frombuffer(self._memory, np.uint32)
        self.header = memoryview(self._memory).cast("B").cast("I")[: int(UNIT)]
        self._is_huge = False
        self.write(kernels.begin, units, max(_LOW_AT_LEAST, units // _LOW_SHARE))

    @property
    def bytes(self) -> int:
        """What is taken, what was given back included."""
        return self.header[FRESH] * int(UNIT_BYTES)

    @property
    def free_share(self) -> float:
        """Of all that the bound allows."""
        return 1 - self.header[USED] / self.header[UNITS]

    @property
    def lost(self) -> int:
        """Blocks forgotten for all replicas, because there was no room for what was left of a
        set."""
        return self.header[LOST]

    def take_pressed(self) -> bool:
        """Has memory been short since this was asked?"""
        was_pressed = bool(self.header[PRESSED])
        self.header[PRESSED] = 0
        return was_pressed

    def write(
        self, kernel: Callable[Concatenate[Cells, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call what changes the cells. Readers elsewhere know by the version."""
        header = self.header
        header[VERSION] = (header[VERSION] + 1) & _VERSION_BITS
        try:
            return kernel(self.cells, *args, **kwargs)
        finally:
            header[VERSION] = (header[VERSION] + 1) & _VERSION_BITS

    def ask_for_huge_pages(self) -> None:
        """Once it is worth it, where the system has them (Linux, unless it is told otherwise)."""
        if self._is_huge or self.header[FRESH] < _HUGE_FROM_UNITS:
            return
        self._is_huge = True
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE)


def reserve(size: int) -> mmap.mmap:
    """Addresses of so many zeros, which take memory when they are first written to."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def halves(hashes: Sequence[int]) -> Cells:
    """64-bit hashes as kernels want them; those in an array are not copied. OverflowError,
    TypeError: they are none."""
    if not (isinstance(hashes, array) and hashes.typecode == HASH_CODE):
        hashes = array(HASH_CODE, hashes)
    return np.frombuffer(hashes, _CELL)
