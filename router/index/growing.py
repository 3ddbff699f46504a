"""Blocks that go on from blocks of many prompts, as engines tell of them while they decode: plain
functions over the index's memory, compiled. Arrays of hashes are as in `kernels`."""

import numpy as np
from numpy.typing import NDArray

from router.compiled import Cells, entry, integer
from router.index.booking import block_key, no_change, shelf_key
from router.index.kernels import keep
from router.index.layout import BLOCK, CAP, COPIES, COPIES_BITS, KEPT, LOW, MARK, SLOT
from router.index.replica_sets import slot_record
from router.index.tables import find
from router.index.units import cell

_CELLS = "uint32[::1]"


@entry(f"int64({_CELLS}, int64, {_CELLS}, {_CELLS}, int64[::1])")
def look_up_each(
    cells: Cells, shelf: int, handles: Cells, blocks: Cells, depths: NDArray[np.int64]
) -> int:
    """Depth and block of each of these handles. Returns how many are known, up to one that isn't.

    `blocks`: room for a hash of each.
    """
    for number in range(len(depths)):
        key = shelf_key(handles, number)
        at = find(cells, shelf, key[0], key[1])
        if at < 0:
            return number
        blocks[2 * number] = cells[at + BLOCK]
        blocks[2 * number + 1] = cells[at + BLOCK + 1]
        depths[number] = cell(cells, at + MARK) >> COPIES_BITS
    return len(depths)


@entry(f"UniTuple(int64, 2)({_CELLS}, int64, {_CELLS}, {_CELLS}, int64[::1])")
def store_each(
    cells: Cells, shelf: int, handles: Cells, blocks: Cells, parents: NDArray[np.int64]
) -> tuple[int, int]:
    """One more copy of each block, one below the depth of its parent.

    Returns how many were dealt with (the others find no room, or lie too deep), and how many
    handles meant other blocks before.
    """
    cells[KEPT] = cells[LOW]
    cap = cell(cells, slot_record(cells, cell(cells, shelf + SLOT)) + CAP)
    done = conflicts = integer(0)
    last = no_change()
    for number in range(len(parents)):
        depth = parents[number] + 1
        if depth > cap:
            continue
        entry_ = shelf_key(handles, number), block_key(blocks, number), depth
        what, last = keep(cells, shelf, entry_, COPIES, last)
        conflicts += what == 2
        if last[1] < 0:
            last = no_change()
        else:
            done += 1
    return done, conflicts
