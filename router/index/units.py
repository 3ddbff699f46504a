"""Units of the index's memory, handed out and taken back: plain functions, compiled."""

from router.compiled import Cells, called, inlined, integer
from router.index.layout import FREE, FRESH, KEPT, LOW, PRESSED, UNIT, UNIT_BITS, UNITS, USED


@inlined
def cell(cells: Cells, at: int) -> int:
    """What a cell holds, as a number that may be reckoned with."""
    return integer(cells[at])


@inlined
def clear(cells: Cells, at: int, count: int) -> None:
    for number in range(at, at + count):
        cells[number] = 0


@called
def take_unit(cells: Cells) -> int:
    """A unit of zeros, or 0 if none is left for this."""
    left = cell(cells, UNITS) - cell(cells, USED)
    if cells[KEPT] and left <= 2 * cell(cells, LOW):
        cells[PRESSED] = 1
    if left <= cell(cells, KEPT):
        return 0
    unit = cell(cells, FREE)
    if unit:
        at = unit << UNIT_BITS
        cells[FREE] = cells[at]
        clear(cells, at, UNIT)
    else:
        unit = cell(cells, FRESH)
        cells[FRESH] = unit + 1
    cells[USED] += 1
    return unit


@called
def give_unit(cells: Cells, unit: int) -> None:
    cells[unit << UNIT_BITS] = cells[FREE]
    cells[FREE] = unit
    cells[USED] -= 1


@inlined
def inside(cells: Cells, unit: int) -> int:
    """A unit's address. Another process that reads what is just being written may see a unit that
    there is not; it gets the header, and will read again."""
    return unit << UNIT_BITS if unit < cells[UNITS] else integer(0)
