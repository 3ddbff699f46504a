"""What other processes of this host make replicas do, and what they have in flight there.

Plain Python over memory that they share, compiled when it is first needed (`compile_all`): whoever
has no siblings need not load it.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.compiled import called, entry, integer
from router.index.load import RECENT_HALF_LIFE_S
from router.index.residency import STRIDE

Numbers: TypeAlias = NDArray[np.float64]
Words: TypeAlias = NDArray[np.uint64]
Rows: TypeAlias = NDArray[np.int64]

COLUMNS = 9
QUEUED, WAIT_MS, RUNNING, WAITING, RECENT_MS, MEAN_MS, RESIDENT, PAIRS, TOLD_AT = range(COLUMNS)
"""The columns of a cell."""


@entry("int64(float64[:,:,:], uint64[::1], uint64[:,::1], int64, float64, float64[:,::1])")
def add_up(cells: Numbers, names: Words, asked: Words, own: int, now: float, found: Numbers) -> int:
    """What all processes but our `own` make replicas do, each aged as `Load.aged` does it.

    `cells`: by row and process. `asked`: each replica's row and name. `found`: a row for each, of
    which the last column says how many processes told of it. Returns how many rows are others' now.
    """
    moved = 0
    for number in range(asked.shape[0]):
        row, total = asked[number, 0], found[number]
        total[:] = 0.0
        if names[row] != asked[number, 1]:
            moved += 1
            continue
        for process in range(cells.shape[1]):
            cell = cells[row, process]
            if process == own or cell[TOLD_AT] == 0.0:
                continue
            age_s = max(0.0, now - cell[TOLD_AT])
            wait_ms = max(0.0, cell[WAIT_MS] - age_s * 1e3)
            if wait_ms > 0.0:
                total[QUEUED] += cell[QUEUED]
                total[PAIRS] += cell[PAIRS]
                total[WAIT_MS] += wait_ms
                total[RUNNING] += cell[RUNNING]
                total[WAITING] += cell[WAITING]
            else:
                total[RUNNING] += cell[RUNNING] + cell[WAITING]
            total[RECENT_MS] += cell[RECENT_MS] * np.exp2(-age_s / RECENT_HALF_LIFE_S)
            total[MEAN_MS] = max(total[MEAN_MS], cell[MEAN_MS])
            total[RESIDENT] += cell[RESIDENT]
            total[TOLD_AT] += 1.0
    return moved


ROW, BLOCKS, LAST, MARKS_AT = range(4)
"""The columns of an entry: where a prefix went, how many blocks it has, its last hash, and every
eighth."""


@called
def common(sought: Words, entry: Words) -> int:
    """Leading blocks in common, to within `STRIDE` where the prefixes part. The first is."""
    blocks = integer(entry[BLOCKS])
    if 0 < blocks <= len(sought) and sought[blocks - 1] == entry[LAST]:
        return blocks
    low, high = integer(0), min(len(sought) // STRIDE, len(entry) - MARKS_AT)
    high = min(high, blocks // STRIDE)
    while low < high:
        middle = (low + high + 1) // 2
        if sought[middle * STRIDE - 1] == entry[MARKS_AT + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return max(1, low * STRIDE)


@entry("int64(uint64[::1], uint64[:,::1], uint64[::1], int64, int64, int64[:,::1])")
def expected(
    roots: Words, entries: Words, sought: Words, first_own: int, after_own: int, found: Rows
) -> int:
    """Leading blocks of a prefix that entries but our own have in flight.

    `roots`: the first hash of each entry. `sought`: the prefix' hashes. `found`: gets a replica's
    row and its blocks, for each replica. Returns how many those are.
    """
    count = 0
    for number in range(len(roots)):
        if roots[number] != sought[0] or first_own <= number < after_own:
            continue
        row, blocks = integer(entries[number, ROW]), common(sought, entries[number])
        at = 0
        while at < count and found[at, 0] != row:
            at += 1
        if at == count:
            if count == len(found):
                break
            found[at, 0], found[at, 1] = row, 0
            count += 1
        found[at, 1] = max(found[at, 1], blocks)
    return count
