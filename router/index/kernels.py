"""What is compiled of the index: storing, removing, matching and sweeping, many blocks at a time.

Arrays of 64-bit hashes come as their 32-bit halves, the low one first.
"""

from typing import Final

import numpy as np

from router.compiled import Cells, called, entry, inlined, integer
from router.index.booking import (
    Change,
    Key,
    block_key,
    block_of,
    drop_entry,
    hold,
    let_go,
    no_change,
    no_memory,
    shelf_key,
    take_out,
)
from router.index.layout import (
    BLOCK,
    BLOCKS,
    CAP,
    COPIES_BITS,
    FRESH,
    KEPT,
    LAYOUT,
    LEVELS,
    LIVE,
    LOW,
    MAGIC,
    MAP_WIDTH,
    MARK,
    MAX_COPIES,
    MAX_DEPTH,
    OWNER,
    REPORTED,
    SCRATCH,
    SET_CELLS,
    SET_MASK,
    SETS,
    SHELF_WIDTH,
    SLOT,
    SLOTS_USED,
    UNIT_BITS,
    UNITS,
    USED,
)
from router.index.replica_sets import begin_table, new_table, slot_record
from router.index.tables import find, first_place, put, room
from router.index.units import cell

ALL_KEYS: Final = integer(2**32)
"""Where sweeping ends."""
_CELLS: Final = "uint32[::1]"
_AHEAD: Final = integer(32)
"""Entries are touched so many at a time before they are looked at: memory answers all at once in
little more time than one."""


@entry(f"void({_CELLS}, int64, int64)")
def begin(cells: Cells, units: int, low: int) -> None:
    """Make an empty index of memory that is all zeros."""
    cells[UNITS] = units
    cells[LOW] = low
    cells[USED] = 1
    cells[FRESH] = 1
    begin_table(cells, BLOCKS, MAP_WIDTH)
    begin_table(cells, SETS, MAP_WIDTH)
    cells[MAGIC] = LAYOUT


@entry(f"int64({_CELLS}, int64)")
def new_shelf(cells: Cells, slot: int) -> int:
    """Head of a shelf's table, or 0: there is no memory."""
    cells[KEPT] = cells[LOW]
    shelf = new_table(cells, SHELF_WIDTH)
    if shelf:
        cells[shelf + SLOT] = slot
    return shelf


@inlined
def look_ahead(cells: Cells, shelf: int, handles: Cells, blocks: Cells, start: int) -> int:
    """Touch what the next keys will need."""
    seen = integer(0)
    for number in range(start, min(start + _AHEAD, len(handles) >> 1)):
        high, low = shelf_key(handles, number)
        seen ^= cell(cells, first_place(cells, shelf, high, low))
        high, low = block_key(blocks, number)
        seen ^= cell(cells, first_place(cells, BLOCKS, high, low))
    return seen


@inlined
def is_of(cells: Cells, at: int, block: Key) -> bool:
    """Does a shelf's entry stand for this block?"""
    return bool(cells[at + BLOCK] == block[1] and cells[at + BLOCK + 1] == block[0])


@inlined
def shelve(cells: Cells, shelf: int, entry_: tuple[Key, Key, int], at: int, last: Change) -> Change:
    """Book a handle and its block with a mark, where the search for the handle ended.

    Returns the change to hand on; if its second is -1, there is no memory.
    """
    key, block, mark = entry_
    at = room(cells, shelf, key[0], key[1], -at)
    if at == 0:
        return no_memory()
    last = hold(cells, cell(cells, shelf + SLOT), block, last)
    if last[1] >= 0:
        put(cells, shelf, at, key, mark)
        cells[at + BLOCK] = block[1]
        cells[at + BLOCK + 1] = block[0]
    return last


@inlined
def add_copy(cells: Cells, at: int) -> None:
    """The most that can be counted is never left again."""
    if cell(cells, at + MARK) & MAX_COPIES < MAX_COPIES:
        cells[at + MARK] += 1


@inlined
def keep(
    cells: Cells, shelf: int, entry_: tuple[Key, Key, int], mode: int, last: Change
) -> tuple[int, Change]:
    """One more copy of a block, under a handle and at a depth.

    Returns 1 if it was reported again, 2 if the handle meant another block before, else 0; and the
    change to hand on. If its second is -1, there is no memory.
    """
    key, block, depth = entry_
    at = find(cells, shelf, key[0], key[1])
    if at > 0 and is_of(cells, at, block):
        if mode == REPORTED:
            return integer(1), last
        add_copy(cells, at)
        return integer(0), last
    what = integer(0)
    if at > 0:
        what = integer(2)
        at, last = drop_entry(cells, shelf, at, key), no_change()
    mark = (min(depth, MAX_DEPTH) << COPIES_BITS) + 1
    return what, shelve(cells, shelf, (key, block, mark), at, last)


@entry(f"UniTuple(int64, 3)({_CELLS}, int64, int64, {_CELLS}, {_CELLS}, int64)")
def store(
    cells: Cells, shelf: int, depth: int, handles: Cells, blocks: Cells, mode: int
) -> tuple[int, int, int]:
    """One more copy of each block on a shelf, the first of them at `depth`.

    Returns how many were dealt with (the rest finds no room, or lies too deep), how many of them
    were reported again, and how many handles meant other blocks before.
    """
    cells[KEPT] = cells[LOW]
    cap = cell(cells, slot_record(cells, cell(cells, shelf + SLOT)) + CAP)
    again = conflicts = integer(0)
    last = no_change()
    count = len(handles) >> 1
    for number in range(count):
        if number % _AHEAD == 0:
            cells[SCRATCH] = look_ahead(cells, shelf, handles, blocks, number)
        if depth > cap:
            return number, again, conflicts
        key, block = shelf_key(handles, number), block_key(blocks, number)
        what, last = keep(cells, shelf, (key, block, depth), mode, last)
        again += what == 1
        conflicts += what == 2
        if last[1] < 0:
            return number, again, conflicts
        depth += mode != LEVELS
    return count, again, conflicts


@entry(f"int64({_CELLS}, int64, {_CELLS})")
def remove_copies(cells: Cells, shelf: int, handles: Cells) -> int:
    """One copy less of each. Returns how many are unknown; their numbers, in the order in which
    they came, are then at the start of `handles`."""
    cells[KEPT] = 0
    slot = cell(cells, shelf + SLOT)
    last = no_change()
    unknown = integer(0)
    for number in range(len(handles) >> 1):
        high, low = shelf_key(handles, number)
        at = find(cells, shelf, high, low)
        if at < 0:
            handles[unknown] = number
            unknown += 1
        elif cell(cells, at + MARK) & MAX_COPIES > 1:
            cells[at + MARK] -= 1
        else:
            block = block_of(cells, at)
            take_out(cells, shelf, at)
            last = let_go(cells, slot, block, last)
    return unknown


@entry(f"Tuple((int64, uint64))({_CELLS}, int64, {_CELLS})")
def look_up(cells: Cells, shelf: int, handles: Cells) -> tuple[int, np.uint64]:
    """Depth (-1: unknown) and block of the first of these handles."""
    high, low = shelf_key(handles, integer(0))
    at = find(cells, shelf, high, low)
    if at < 0:
        return integer(-1), np.uint64(0)
    half = np.uint64(32)
    block = (np.uint64(cells[at + BLOCK + 1]) << half) | np.uint64(cells[at + BLOCK])
    return cell(cells, at + MARK) >> COPIES_BITS, block


@called
def note(cells: Cells, word: int, gone: int, depth: int, found: Cells, count: int) -> int:
    """Slots whose match ends here, after `count` others. Returns how many there are now."""
    slot = word << 5
    while gone:
        if gone & 1:
            record = slot_record(cells, slot)
            found[2 * count] = cells[record + OWNER]
            found[2 * count + 1] = min(depth, cell(cells, record + CAP) + 1)
            count += 1
        gone >>= 1
        slot += 1
    return count


@inlined
def holders_of(cells: Cells, prefix: Cells, number: int) -> int:
    """The set that holds a block; 0: nobody does."""
    high, low = block_key(prefix, number)
    at = find(cells, BLOCKS, high, low)
    return cell(cells, at + MARK) if at > 0 else integer(0)


@inlined
def narrow(cells: Cells, holders: int, depth: int, found: Cells, count: int) -> tuple[int, int]:
    """Who is not in the set drops out of the match. Returns what is left of those that were in it
    (0: nobody), and how many have been found."""
    words = cell(cells, SLOTS_USED) + 31 >> 5
    alive_at = len(found) - 1 - words
    end = (cell(cells, UNITS) << UNIT_BITS) - SET_MASK
    size = min(cell(cells, holders + SET_CELLS), end - holders) if 0 < holders < end else integer(0)
    left = integer(0)
    for word in range(words):
        alive = cell(found, alive_at + word)
        stay = alive & cell(cells, holders + SET_MASK + word) if word < size else integer(0)
        if alive != stay:
            found[alive_at + word] = stay
            if depth:
                count = note(cells, word, alive ^ stay, depth, found, count)
        left |= stay
    return left, count


@entry(
    f"int64({_CELLS}, {_CELLS}, {_CELLS})",
    f"int64(Array(uint32, 1, 'C', True), {_CELLS}, {_CELLS})",  # memory that is only read
)
def match(cells: Cells, prefix: Cells, found: Cells) -> int:
    """Leading blocks of the prefix that each live slot holds.

    Returns how many slots hold any; `found` has then owner and blocks of each, in turn. It needs
    three cells for each slot that was ever given out, and two more. -1: it has less.
    """
    words = cell(cells, SLOTS_USED) + 31 >> 5
    alive_at = len(found) - 1 - words
    if alive_at < 2 * cell(cells, SLOTS_USED):
        return integer(-1)
    for word in range(words):
        found[alive_at + word] = cells[LIVE + word]
    count, written = len(prefix) >> 1, integer(0)
    before = seen = integer(-1)
    for number in range(count):
        if number % _AHEAD == 0:
            for ahead in range(number, min(number + _AHEAD, count)):
                high, low = block_key(prefix, ahead)
                seen ^= cell(cells, first_place(cells, BLOCKS, high, low))
            found[len(found) - 1] = seen & 1
        holders = holders_of(cells, prefix, number)
        if holders == before:
            continue
        before = holders
        left, written = narrow(cells, holders, number, found, written)
        if left == 0:
            return written
    left, written = narrow(cells, integer(0), count, found, written)
    return written
