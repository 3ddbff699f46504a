"""What is compiled of the index beside its daily work: slots that come and go, memory given back in
slices, listing what is held."""

from typing import Final, TypeAlias

from router.compiled import Cells, called, entry, inlined, integer
from router.index.booking import block_of, let_all_go, let_go, no_change, shelf_key
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
from router.index.tables import find, merge, remove, segment_at, winding
from router.index.units import cell, give_unit, take_unit

ALL_KEYS: Final = integer(2**32)
"""Where a walk over a table ends."""
_CELLS: Final = "uint32[::1]"
_ENTRIES: Final = f"UniTuple({_CELLS}, 3)"
Entries: TypeAlias = tuple[Cells, Cells, Cells]
"""Room for what lies on a shelf: spread handles, blocks (both in halves), depth and copies."""
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


@inlined
def write_down(cells: Cells, at: int, into: Entries, number: int) -> None:
    """A shelf's entry: its spread handle, its block, its depth and copies."""
    keys, blocks, marks = into
    keys[2 * number] = cells[at]
    keys[2 * number + 1] = cells[at + KEY_HIGH]
    blocks[2 * number] = cells[at + BLOCK]
    blocks[2 * number + 1] = cells[at + BLOCK + 1]
    marks[number] = cells[at + MARK]


@entry(f"UniTuple(int64, 2)({_CELLS}, int64, int64, {_ENTRIES})")
def listed(cells: Cells, shelf: int, where: int, into: Entries) -> tuple[int, int]:
    """Entries from `where` on, as long as a whole segment more finds room.

    Returns where to go on, and how many were listed. Entries lie in the order of their keys,
    whatever splits or becomes one between two calls: each is listed once.
    """
    width, places = cell(cells, shelf + WIDTH), cell(cells, shelf + PLACES)
    looked = count = integer(0)
    most = len(into[2])
    while where < ALL_KEYS and looked + places <= 2 * most and count + places <= most:
        segment, start = segment_at(cells, shelf, where), where
        where = end_of(cells, segment)
        looked += places
        at = segment + SEGMENT_HEAD
        for _ in range(places):
            # it may have been made one with those before `start`
            if cells[at + MARK] and winding(cell(cells, at + KEY_HIGH)) >= start:
                write_down(cells, at, into, count)
                count += 1
            at += width
    return where, count


@entry(f"int64({_CELLS}, int64, int64, {_CELLS}, {_ENTRIES})")
def still(cells: Cells, shelf: int, where: int, handles: Cells, into: Entries) -> int:
    """What a shelf has now of those of these handles that lie at `where` or behind; a mark of 0:
    nothing. Returns how many lie there."""
    keys, _, marks = into
    count = integer(0)
    for number in range(len(handles) >> 1):
        high, low = shelf_key(handles, number)
        if winding(high) < where:
            continue
        at = find(cells, shelf, high, low)
        if at > 0:
            write_down(cells, at, into, count)
        else:
            keys[2 * count], keys[2 * count + 1] = low, high
            marks[count] = 0
        count += 1
    return count
