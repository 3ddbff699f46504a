"""A block on a shelf and its holder's bit, in step: plain functions over the index's memory,
compiled."""

from typing import Final, TypeAlias

import numpy as np

from router.compiled import Cells, called, inlined, integer
from router.index.layout import (
    BLOCK,
    BLOCKS,
    COUNT,
    LOST,
    MAP_WIDTH,
    MARK,
    OTHERS,
    PLACES,
    SEGMENT_COUNT,
    SEGMENT_HEAD,
    SET_USES,
    SLOT,
    UNIT_BITS,
    WIDTH,
)
from router.index.replica_sets import has, new_table, slot_record, toggled, unuse
from router.index.tables import LOW_HALF, find, merge, put, remove, room, seek
from router.index.units import cell

Key: TypeAlias = tuple[int, int]
"""A hash of 64 bits: its high and its low half."""
Change: TypeAlias = tuple[int, int]
"""A set, and what it becomes with a slot more, or less: the same for many blocks in a row. What it
becomes is -1 if there is no memory for it."""

SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
OFFSET: Final = np.uint64(0xD1B54A32D192ED03)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(LOW_HALF)


@inlined
def shelf_key(handles: Cells, number: int) -> Key:
    """Engines may number their blocks as they like; multiplying spreads such numbers over all
    bits, and different ones stay different."""
    whole = (np.uint64(handles[2 * number + 1]) << _HALF) | np.uint64(handles[2 * number])
    key = whole * SPREAD + OFFSET
    return integer(key >> _HALF), integer(key & _LOW)


@inlined
def block_key(blocks: Cells, number: int) -> Key:
    return integer(blocks[2 * number + 1]), integer(blocks[2 * number])


@inlined
def block_of(cells: Cells, at: int) -> Key:
    """The block of a shelf's entry."""
    return cell(cells, at + BLOCK + 1), cell(cells, at + BLOCK)


@inlined
def no_change() -> Change:
    return integer(-1), integer(0)


@inlined
def no_memory() -> Change:
    return integer(-1), integer(-1)


@inlined
def hold(cells: Cells, slot: int, block: Key, last: Change) -> Change:
    """A slot holds a block. Returns the change to hand on; if its second is -1, it does not."""
    at = find(cells, BLOCKS, block[0], block[1])
    holders = cell(cells, at + MARK) if at > 0 else integer(0)
    if has(cells, holders, slot):
        return last if count_other(cells, slot, block) else no_memory()
    if holders != last[0]:
        last = holders, toggled(cells, holders, slot)
        if last[1] < 0:
            return last
    if at > 0:
        cells[at + MARK] = last[1]
        cells[last[1] + SET_USES] += 1
        # a set that is gone may come back as another one
        return (integer(-1), last[1]) if unuse(cells, holders) else last
    at = room(cells, BLOCKS, block[0], block[1], -at)
    if at == 0:
        return no_memory()
    put(cells, BLOCKS, at, block, last[1])
    cells[last[1] + SET_USES] += 1
    return last


@called
def count_other(cells: Cells, slot: int, block: Key) -> bool:
    """One more handle for a block that the slot holds. False: there is no memory."""
    record = slot_record(cells, slot)
    others = cell(cells, record + OTHERS)
    if others == 0:
        others = new_table(cells, MAP_WIDTH)
        if others == 0:
            return False
        cells[record + OTHERS] = others
    at = seek(cells, others, block[0], block[1])
    if at > 0:
        cells[at + MARK] += 1
        return True
    at = room(cells, others, block[0], block[1], -at)
    if at == 0:
        return False
    put(cells, others, at, block, integer(1))
    return True


@called
def let_go(cells: Cells, slot: int, block: Key, last: Change) -> Change:
    """A handle less for a block that a slot holds. Returns the change to hand on."""
    others = cell(cells, slot_record(cells, slot) + OTHERS)
    if others and cells[others + COUNT]:
        at = seek(cells, others, block[0], block[1])
        if at > 0:
            cells[at + MARK] -= 1
            if cells[at + MARK] == 0:
                take_out(cells, others, at)
            return last
    return unhold(cells, slot, block, last)


@called
def unhold(cells: Cells, slot: int, block: Key, last: Change) -> Change:
    """A slot holds a block no longer. Returns the change to hand on."""
    at = find(cells, BLOCKS, block[0], block[1])
    holders = cell(cells, at + MARK) if at > 0 else integer(0)
    if not has(cells, holders, slot):
        return last
    if holders != last[0]:
        last = holders, toggled(cells, holders, slot)
    if last[1] > 0:
        cells[at + MARK] = last[1]
        cells[last[1] + SET_USES] += 1
    else:
        if last[1] < 0:
            cells[LOST] += 1
        take_out(cells, BLOCKS, at)
    return no_change() if unuse(cells, holders) else last


@called
def take_out(cells: Cells, table: int, at: int) -> None:
    """Remove an entry; now and then look whether its segment is worth keeping."""
    remove(cells, table, at)
    segment = at >> UNIT_BITS << UNIT_BITS
    if cell(cells, segment + SEGMENT_COUNT) & 31 == 0:
        merge(cells, table, segment)


@called
def drop_entry(cells: Cells, shelf: int, at: int, key: Key) -> int:
    """Take a block off a shelf, however many copies. Returns what `find` would say now."""
    block = block_of(cells, at)
    remove(cells, shelf, at)
    let_go(cells, cell(cells, shelf + SLOT), block, no_change())
    return seek(cells, shelf, key[0], key[1])


@called
def let_all_go(cells: Cells, shelf: int, segment: int) -> int:
    """A segment of a shelf goes: its slot holds none of its blocks. Returns how many."""
    width, slot = cell(cells, shelf + WIDTH), cell(cells, shelf + SLOT)
    last = no_change()
    at = segment + SEGMENT_HEAD
    for _ in range(cell(cells, shelf + PLACES)):
        if cells[at + MARK]:
            last = unhold(cells, slot, block_of(cells, at), last)
        at += width
    return cell(cells, segment + SEGMENT_COUNT)
