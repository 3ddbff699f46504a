"""Tables from 64-bit keys to a few cells: plain functions over the index's memory, compiled.

Extendible hashing: a directory leads to segments of some hundred entries, with linear probing
inside. A segment that is nearly full splits in two; two that are nearly empty become one. Keys
come to segments as in spiral storage: the ranges of keys that share a segment's size differ in
how much falls into them, by a factor of two over the whole, so segments split one after the other
and not all at once, and a table's fill is the same at every size.
"""

from typing import Final

from router.compiled import Cells, called, inlined, integer
from router.index.layout import (
    COUNT,
    KEPT,
    KEY_HIGH,
    LEVEL,
    MARK,
    PLACES,
    ROOT,
    SEGMENT_COUNT,
    SEGMENT_HEAD,
    SEGMENT_LEVEL,
    SEGMENT_START,
    UNIT,
    UNIT_BITS,
    UNITS,
    USED,
    WIDTH,
)
from router.index.units import cell, give_unit, inside, take_unit

LOW_HALF: Final = integer(2**32 - 1)
SPIRAL: Final = integer(1488522236)
"""0.347 x 2**32: the slope of `winding` runs from 1.35 to 0.65, nearly that of log2(1+x)."""
MOST_LEVELS: Final = integer(22)
_FIRST: Final = integer(0)


@inlined
def winding(high: int) -> int:
    """Where a key lies in its table, of 2**32: rising with the key, denser at its end."""
    return high + ((((high * (LOW_HALF - high)) >> 32) * SPIRAL) >> 32)


@inlined
def home(high: int, low: int, places: int) -> int:
    """The place in its segment where a key is looked for first."""
    mixed = ((low * 0x5851F42D) ^ (high * 0x4C957F2D)) & LOW_HALF
    return (mixed * places) >> 32


@inlined
def segment_at(cells: Cells, table: int, where: int) -> int:
    """The segment of those keys that wind to `where`."""
    level = cell(cells, table + LEVEL)
    unit = cell(cells, table + ROOT)
    if level == 0:
        return inside(cells, unit)
    number = where >> (32 - level)
    if level > UNIT_BITS:
        unit = cell(cells, inside(cells, unit) + (number >> UNIT_BITS))
    return inside(cells, cell(cells, inside(cells, unit) + (number & (UNIT - 1))))


@inlined
def first_place(cells: Cells, table: int, high: int, low: int) -> int:
    """The address at which a key's search begins."""
    segment = segment_at(cells, table, winding(high))
    place = home(high, low, cell(cells, table + PLACES))
    return segment + SEGMENT_HEAD + place * cell(cells, table + WIDTH)


@inlined
def find(cells: Cells, table: int, high: int, low: int) -> int:
    """An entry's address; if there is none, the negative one of the free place for it."""
    width, places = cell(cells, table + WIDTH), cell(cells, table + PLACES)
    segment = segment_at(cells, table, winding(high))
    place = home(high, low, places)
    at = segment + SEGMENT_HEAD + place * width
    for _ in range(places):
        if cells[at + MARK] == 0:
            break
        if cells[at] == low and cells[at + KEY_HIGH] == high:
            return at
        place += 1
        at += width
        if place == places:
            place, at = 0, segment + SEGMENT_HEAD
    return -at


@called
def seek(cells: Cells, table: int, high: int, low: int) -> int:
    """`find`, where it is seldom needed."""
    return find(cells, table, high, low)


@called
def free_place(cells: Cells, table: int, segment: int, high: int, low: int) -> int:
    """The address of the free place in this segment for a key that is not in it."""
    width, places = cell(cells, table + WIDTH), cell(cells, table + PLACES)
    place = home(high, low, places)
    while cells[segment + SEGMENT_HEAD + place * width + MARK]:
        place += 1
        if place == places:
            place = 0
    return segment + SEGMENT_HEAD + place * width


@called
def room(cells: Cells, table: int, high: int, low: int, at: int) -> int:
    """A free place for a key whose search ended at `at`, or 0 if there is no memory for it."""
    places = cell(cells, table + PLACES)
    while True:
        segment = at >> UNIT_BITS << UNIT_BITS
        count = cell(cells, segment + SEGMENT_COUNT)
        if 8 * count < 7 * places:
            return at
        if not split(cells, table, segment):
            return at if count < places - (places >> 5) else 0
        at = -seek(cells, table, high, low)


@inlined
def put(cells: Cells, table: int, at: int, key: tuple[int, int], mark: int) -> None:
    """Make an entry at a free place. `key`: its high and low half."""
    cells[at] = key[1]
    cells[at + KEY_HIGH] = key[0]
    cells[at + MARK] = mark
    cells[(at >> UNIT_BITS << UNIT_BITS) + SEGMENT_COUNT] += 1
    cells[table + COUNT] += 1


@called
def remove(cells: Cells, table: int, at: int) -> None:
    """Remove an entry: those that follow it move up, so nothing is left in its place."""
    width, places = cell(cells, table + WIDTH), cell(cells, table + PLACES)
    segment = at >> UNIT_BITS << UNIT_BITS
    base = segment + SEGMENT_HEAD
    hole = (at - base) // width
    place, gap = hole, at
    while True:
        place += 1
        at += width
        if place == places:
            place, at = 0, base
        if cells[at + MARK] == 0:
            break
        wanted = home(cell(cells, at + KEY_HIGH), cell(cells, at), places)
        may_move = wanted <= hole or wanted > place if hole < place else place < wanted <= hole
        if may_move:
            copy(cells, at, gap, width)
            hole, gap = place, at
    cells[gap + MARK] = 0
    cells[segment + SEGMENT_COUNT] -= 1
    cells[table + COUNT] -= 1


@inlined
def copy(cells: Cells, source: int, target: int, width: int) -> None:
    for number in range(width):
        cells[target + number] = cells[source + number]


@called
def split(cells: Cells, table: int, segment: int) -> bool:
    """Move the upper half of a segment's keys to a new one. False: there is no memory."""
    level = cell(cells, segment + SEGMENT_LEVEL)
    if level == cell(cells, table + LEVEL) and not widen(cells, table):
        return False
    unit = take_unit(cells)
    if not unit:
        return False
    upper = unit << UNIT_BITS
    start = cell(cells, segment + SEGMENT_START) + (1 << (31 - level))
    cells[upper + SEGMENT_START] = start
    cells[upper + SEGMENT_LEVEL] = level + 1
    cells[segment + SEGMENT_LEVEL] = level + 1
    deal(cells, table, segment, (segment, upper))
    lead(cells, table, start, (level + 1, unit))
    return True


@called
def deal(cells: Cells, table: int, source: int, targets: tuple[int, int]) -> None:
    """Put a segment's entries where they belong: below or above the start of `targets[1]`.

    `source` may be `targets[0]`: from behind a free place on, an entry only moves back.
    """
    width, places = cell(cells, table + WIDTH), cell(cells, table + PLACES)
    base = source + SEGMENT_HEAD
    border = cell(cells, targets[1] + SEGMENT_START)
    first = 0
    while cells[base + first * width + MARK]:
        first += 1
    at = base + first * width
    for _ in range(places - 1):
        at += width
        if at == base + places * width:
            at = base
        mark = cells[at + MARK]
        if mark == 0:
            continue
        high, low = cell(cells, at + KEY_HIGH), cell(cells, at)
        target = targets[1] if winding(high) >= border else targets[0]
        cells[at + MARK] = 0
        to = free_place(cells, table, target, high, low)
        copy(cells, at, to, width)
        cells[to + MARK] = mark
        cells[source + SEGMENT_COUNT] -= 1
        cells[target + SEGMENT_COUNT] += 1


@called
def lead(cells: Cells, table: int, start: int, what: tuple[int, int]) -> None:
    """Let the directory lead from `start` on, for a range of a level, to a unit."""
    level, unit = what
    depth = cell(cells, table + LEVEL)
    root = cell(cells, table + ROOT)
    if depth == 0:
        cells[table + ROOT] = unit
        return
    number = start >> (32 - depth)
    for each in range(number, number + (1 << (depth - level))):
        page = root
        if depth > UNIT_BITS:
            page = cell(cells, (root << UNIT_BITS) + (each >> UNIT_BITS))
        cells[(page << UNIT_BITS) + (each & (UNIT - 1))] = unit


@called
def widen(cells: Cells, table: int) -> bool:
    """Double the directory. False: there is no memory."""
    level = cell(cells, table + LEVEL)
    root = cell(cells, table + ROOT)
    pages = (1 << level) >> UNIT_BITS
    left = cell(cells, UNITS) - cell(cells, USED) - cell(cells, KEPT)
    if level >= MOST_LEVELS or left <= pages + 1:
        return False
    if level == 0 or level == UNIT_BITS:
        above = take_unit(cells)
        cells[above << UNIT_BITS] = root
        cells[table + ROOT] = above
        root = above
    if level < UNIT_BITS:
        spread_page(cells, root, root, _FIRST, 1 << level)
    for number in range(pages - 1, -1, -1):
        page = cell(cells, (root << UNIT_BITS) + number)
        other = take_unit(cells)
        spread_page(cells, page, other, UNIT >> 1, UNIT >> 1)
        spread_page(cells, page, page, _FIRST, UNIT >> 1)
        cells[(root << UNIT_BITS) + 2 * number + 1] = other
        cells[(root << UNIT_BITS) + 2 * number] = page
    cells[table + LEVEL] = level + 1
    return True


@called
def spread_page(cells: Cells, source: int, target: int, first: int, count: int) -> None:
    """Each of `count` entries of a directory's page comes twice, in `target` from its start on."""
    source_at, target_at = (source << UNIT_BITS) + first, target << UNIT_BITS
    for number in range(count - 1, -1, -1):
        led = cells[source_at + number]
        cells[target_at + 2 * number + 1] = led
        cells[target_at + 2 * number] = led


@called
def merge(cells: Cells, table: int, segment: int) -> None:
    """Make one of a segment and its neighbour, if both together are small."""
    level = cell(cells, segment + SEGMENT_LEVEL)
    if level == 0:
        return
    start = cell(cells, segment + SEGMENT_START)
    other = segment_at(cells, table, start ^ (1 << (32 - level)))
    count = cell(cells, segment + SEGMENT_COUNT) + cell(cells, other + SEGMENT_COUNT)
    if level != cells[other + SEGMENT_LEVEL] or 4 * count > 3 * cell(cells, table + PLACES):
        return
    start = min(start, cell(cells, other + SEGMENT_START))
    deal(cells, table, other, (segment, segment))
    cells[segment + SEGMENT_START] = start
    cells[segment + SEGMENT_LEVEL] = level - 1
    lead(cells, table, start, (level - 1, segment >> UNIT_BITS))
    give_unit(cells, other >> UNIT_BITS)
