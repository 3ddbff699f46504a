"""What is compiled of the index beside its daily work: slots that come and go, memory given back in
slices, listing what is held."""

from typing import Final

from router.compiled import Cells, called, entry, inlined, integer
from router.index.booking import block_of, let_all_go, let_go, no_change
from router.index.layout import (
    BLOCK,
    CAP,
    COPIES_BITS,
    KEPT,
    KEY_HIGH,
    LEVEL,
    LIVE,
    MARK,
    OTHERS,
    OWNER,
    PLACES,
    ROOT,
    SEGMENT_HEAD,
    SEGMENT_LEVEL,
    SEGMENT_START,
    SLOT,
    SLOT_BITS,
    SLOT_KEY,
    SLOT_UNITS,
    SLOTS_USED,
    UNCAPPED,
    UNIT_BITS,
    WIDTH,
)
from router.index.replica_sets import give_record, slot_record
from router.index.tables import merge, remove, segment_at
from router.index.units import cell, give_unit, take_unit

ALL_KEYS: Final = integer(2**32)
"""Where a walk over a table ends."""
_CELLS: Final = "uint32[::1]"
_SEGMENT_COST: Final = integer(32)


@inlined
def end_of(cells: Cells, segment: int) -> int:
    """Where the next segment's keys begin."""
    level = cell(cells, segment + SEGMENT_LEVEL)
    return cell(cells, segment + SEGMENT_START) + (1 << (32 - level))


@called
def drop_directory(cells: Cells, table: int) -> None:
    """Give back a table's directory and head; its segments are gone."""
    level, root = cell(cells, table + LEVEL), cell(cells, table + ROOT)
    if level > UNIT_BITS:
        for number in range(1 << (level - UNIT_BITS)):
            give_unit(cells, cell(cells, (root << UNIT_BITS) + number))
    if level:
        give_unit(cells, root)
    give_record(cells, table)


@entry(f"boolean({_CELLS}, int64, int64, int64, int64)")
def open_slot(cells: Cells, slot: int, owner: int, key_low: int, key_high: int) -> bool:
    """Let a slot match that holds nothing. False: there is no memory."""
    cells[KEPT] = 0
    record_unit = SLOT_UNITS + (slot >> (UNIT_BITS - SLOT_BITS))
    if cells[record_unit] == 0:
        cells[record_unit] = take_unit(cells)
        if cells[record_unit] == 0:
            return False
    record = slot_record(cells, slot)
    cells[record + OWNER] = owner
    cells[record + CAP] = UNCAPPED
    cells[record + SLOT_KEY] = key_low
    cells[record + SLOT_KEY + 1] = key_high
    cells[record + OTHERS] = 0
    cells[SLOTS_USED] = max(cell(cells, SLOTS_USED), slot + 1)
    word = LIVE + (slot >> 5)
    cells[word] = cell(cells, word) | (1 << (slot & 31))
    return True


@entry(f"void({_CELLS}, int64)")
def close_slot(cells: Cells, slot: int) -> None:
    """Let a slot match nothing from now on."""
    word = LIVE + (slot >> 5)
    cells[word] = cell(cells, word) & ~(1 << (slot & 31))


@entry(f"void({_CELLS}, int64, int64)")
def set_cap(cells: Cells, slot: int, cap: int) -> None:
    """A slot's blocks that lie deeper do not match from now on, and no new ones are taken."""
    cells[slot_record(cells, slot) + CAP] = cap


@entry(f"void({_CELLS}, int64)")
def drop_others(cells: Cells, slot: int) -> None:
    """The last of a slot whose shelves are gone."""
    record = slot_record(cells, slot)
    others = cell(cells, record + OTHERS)
    cells[record + OTHERS] = 0
    if others:
        where = integer(0)
        while where < ALL_KEYS:
            segment = segment_at(cells, others, where)
            where = end_of(cells, segment)
            give_unit(cells, segment >> UNIT_BITS)
        drop_directory(cells, others)


@entry(f"int64({_CELLS}, int64, int64, int64)")
def sweep(cells: Cells, shelf: int, where: int, limit: int) -> int:
    """Take apart about `limit` blocks of a shelf that nobody uses any more, from `where` on.

    Returns where to go on. At `ALL_KEYS` the shelf is gone.
    """
    cells[KEPT] = 0
    while where < ALL_KEYS and limit > 0:
        segment = segment_at(cells, shelf, where)
        where = end_of(cells, segment)
        limit -= let_all_go(cells, shelf, segment) + _SEGMENT_COST
        give_unit(cells, segment >> UNIT_BITS)
    if where == ALL_KEYS:
        drop_directory(cells, shelf)
    return where


@entry(f"UniTuple(int64, 2)({_CELLS}, int64, int64, int64)")
def trim(cells: Cells, shelf: int, where: int, limit: int) -> tuple[int, int]:
    """Take what lies deeper than the cap off a shelf, looking at about `limit` places.

    Returns where to go on, and how many blocks went.
    """
    cells[KEPT] = 0
    trimmed = integer(0)
    while where < ALL_KEYS and limit > 0:
        segment = segment_at(cells, shelf, where)
        where = end_of(cells, segment)
        trimmed += trim_segment(cells, shelf, segment)
        limit -= cell(cells, shelf + PLACES)
        merge(cells, shelf, segment)
    return where, trimmed


@called
def trim_segment(cells: Cells, shelf: int, segment: int) -> int:
    width, slot = cell(cells, shelf + WIDTH), cell(cells, shelf + SLOT)
    cap = cell(cells, slot_record(cells, slot) + CAP)
    end = segment + SEGMENT_HEAD + width * cell(cells, shelf + PLACES)
    trimmed = integer(0)
    last = no_change()
    at = segment + SEGMENT_HEAD
    while at < end:
        if cells[at + MARK] == 0 or cell(cells, at + MARK) >> COPIES_BITS <= cap:
            at += width
            continue
        block = block_of(cells, at)
        remove(cells, shelf, at)  # another one may lie here now
        last = let_go(cells, slot, block, last)
        trimmed += 1
    return trimmed


@entry(f"int64({_CELLS}, int64, {_CELLS}, {_CELLS}, {_CELLS})")
def listed(cells: Cells, shelf: int, keys: Cells, blocks: Cells, marks: Cells) -> int:
    """Spread handles, blocks, and depth and copies, of as many entries as there is room for.

    Returns how many; if not all, they are as good as drawn at random.
    """
    width = cell(cells, shelf + WIDTH)
    count = where = integer(0)
    while where < ALL_KEYS:
        segment = segment_at(cells, shelf, where)
        where = end_of(cells, segment)
        at = segment + SEGMENT_HEAD
        for _ in range(cell(cells, shelf + PLACES)):
            if cells[at + MARK] and count < len(marks):
                keys[2 * count] = cells[at]
                keys[2 * count + 1] = cells[at + KEY_HIGH]
                blocks[2 * count] = cells[at + BLOCK]
                blocks[2 * count + 1] = cells[at + BLOCK + 1]
                marks[count] = cells[at + MARK]
                count += 1
            at += width
    return count
