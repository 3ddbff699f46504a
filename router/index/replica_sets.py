"""Sets of slots (of replicas), each kept once: plain functions over the index's memory, compiled.

A set's key is the XOR of the keys of its slots, so that the set with one slot more or less is
found without looking at the others.
"""

from typing import Final

from router.compiled import Cells, called, inlined, integer
from router.index.layout import (
    HEAD_CELLS,
    MARK,
    PLACES,
    ROOT,
    SEGMENT_HEAD,
    SET_CELLS,
    SET_KEY,
    SET_MASK,
    SET_USES,
    SETS,
    SLAB_CLASS,
    SLAB_FREE,
    SLAB_FRESH,
    SLAB_HEAD,
    SLAB_LIVE,
    SLAB_NEXT,
    SLAB_PREVIOUS,
    SLABS,
    SLOT_BITS,
    SLOT_KEY,
    SLOT_UNITS,
    UNIT,
    UNIT_BITS,
    WIDTH,
)
from router.index.tables import put, remove, room, seek
from router.index.units import cell, clear, give_unit, take_unit

_HEAD_KIND: Final = integer(2)


@inlined
def slot_record(cells: Cells, slot: int) -> int:
    """Address of what is known of a slot."""
    shift = UNIT_BITS - SLOT_BITS
    unit = cell(cells, SLOT_UNITS + (slot >> shift))
    return (unit << UNIT_BITS) + ((slot & ((1 << shift) - 1)) << SLOT_BITS)


@called
def take_record(cells: Cells, kind: int) -> int:
    """A record of 4 + 2**kind cells, which hold anything; 0: there is no memory."""
    unit = cell(cells, SLABS + kind)
    if unit == 0:
        unit = take_unit(cells)
        if unit == 0:
            return 0
        cells[(unit << UNIT_BITS) + SLAB_CLASS] = kind
        cells[(unit << UNIT_BITS) + SLAB_FRESH] = SLAB_HEAD
        cells[SLABS + kind] = unit
    slab = unit << UNIT_BITS
    size = SET_MASK + (1 << kind)
    at = cell(cells, slab + SLAB_FREE)
    if at:
        cells[slab + SLAB_FREE] = cells[at]
    else:
        at = slab + cell(cells, slab + SLAB_FRESH)
        cells[slab + SLAB_FRESH] += size
    cells[slab + SLAB_LIVE] += 1
    if cells[slab + SLAB_FREE] == 0 and cell(cells, slab + SLAB_FRESH) + size > UNIT:
        unlink(cells, slab)
    return at


@called
def give_record(cells: Cells, at: int) -> None:
    slab = at >> UNIT_BITS << UNIT_BITS
    size = SET_MASK + (1 << cell(cells, slab + SLAB_CLASS))
    was_full = cells[slab + SLAB_FREE] == 0 and cell(cells, slab + SLAB_FRESH) + size > UNIT
    cells[at] = cells[slab + SLAB_FREE]
    cells[slab + SLAB_FREE] = at
    cells[slab + SLAB_LIVE] -= 1
    if was_full:
        link(cells, slab)
    if cells[slab + SLAB_LIVE] == 0:
        unlink(cells, slab)
        give_unit(cells, slab >> UNIT_BITS)


@called
def link(cells: Cells, slab: int) -> None:
    """Put a slab first among those of its class with room."""
    at = SLABS + cell(cells, slab + SLAB_CLASS)
    following = cell(cells, at)
    cells[slab + SLAB_NEXT] = following
    cells[slab + SLAB_PREVIOUS] = 0
    if following:
        cells[(following << UNIT_BITS) + SLAB_PREVIOUS] = slab >> UNIT_BITS
    cells[at] = slab >> UNIT_BITS


@called
def unlink(cells: Cells, slab: int) -> None:
    following, before = cell(cells, slab + SLAB_NEXT), cell(cells, slab + SLAB_PREVIOUS)
    if following:
        cells[(following << UNIT_BITS) + SLAB_PREVIOUS] = before
    if before:
        cells[(before << UNIT_BITS) + SLAB_NEXT] = following
    else:
        cells[SLABS + cell(cells, slab + SLAB_CLASS)] = following
    cells[slab + SLAB_NEXT] = 0
    cells[slab + SLAB_PREVIOUS] = 0


@called
def new_table(cells: Cells, width: int) -> int:
    """Head of an empty table, or 0: there is no memory."""
    head = take_record(cells, _HEAD_KIND)
    if head == 0:
        return 0
    if not begin_table(cells, head, width):
        give_record(cells, head)
        return 0
    return head


@called
def begin_table(cells: Cells, head: int, width: int) -> bool:
    """Make an empty table of a head. False: there is no memory."""
    unit = take_unit(cells)
    clear(cells, head, HEAD_CELLS)
    cells[head + ROOT] = unit
    cells[head + WIDTH] = width
    cells[head + PLACES] = (UNIT - SEGMENT_HEAD) // width
    return unit != 0


@inlined
def has(cells: Cells, holders: int, slot: int) -> bool:
    """Is the slot in the set? (0 is the empty one.)"""
    if holders == 0 or slot >> 5 >= cells[holders + SET_CELLS]:
        return False
    return (cell(cells, holders + SET_MASK + (slot >> 5)) >> (slot & 31)) & 1 == 1


@called
def make_set(cells: Cells, holders: int, slot: int, key: tuple[int, int]) -> int:
    """`toggled`, for a set that there is not yet."""
    at = room(cells, SETS, key[0], key[1], -seek(cells, SETS, key[0], key[1]))
    if at == 0:
        return integer(-1)
    known = cell(cells, holders + SET_CELLS) if holders else integer(0)
    count = max((slot >> 5) + 1, known)
    kind = integer(0)
    while 1 << kind < count:
        kind += 1
    made = take_record(cells, kind)
    if made == 0:
        return integer(-1)
    cells[made + SET_CELLS] = count
    cells[made + SET_USES] = 0
    cells[made + SET_KEY] = key[1]
    cells[made + SET_KEY + 1] = key[0]
    for number in range(count):
        kept = cell(cells, holders + SET_MASK + number) if number < known else integer(0)
        cells[made + SET_MASK + number] = kept ^ (1 << (slot & 31) if number == slot >> 5 else 0)
    put(cells, SETS, at, key, made)
    return made


@called
def toggled(cells: Cells, holders: int, slot: int) -> int:
    """The set with the slot in it, if it was not, or without it; -1: there is no memory.

    It may have no uses yet.
    """
    record = slot_record(cells, slot)
    low, high = cell(cells, record + SLOT_KEY), cell(cells, record + SLOT_KEY + 1)
    if holders:
        low ^= cell(cells, holders + SET_KEY)
        high ^= cell(cells, holders + SET_KEY + 1)
    if low == 0 and high == 0:
        return 0
    at = seek(cells, SETS, high, low)
    if at > 0:
        return cell(cells, at + MARK)
    return make_set(cells, holders, slot, (high, low))


@called
def unuse(cells: Cells, holders: int) -> bool:
    """One block less has this set. True: nobody has it any more, and it is gone."""
    cells[holders + SET_USES] -= 1
    if cells[holders + SET_USES]:
        return False
    low, high = cell(cells, holders + SET_KEY), cell(cells, holders + SET_KEY + 1)
    remove(cells, SETS, seek(cells, SETS, high, low))
    give_record(cells, holders)
    return True
