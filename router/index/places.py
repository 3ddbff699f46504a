"""Free places in rows, for many keys at a time."""

from __future__ import annotations

from typing import Final

import numpy as np

from router.index.arena import ROW_SLOTS, Flags, Keys, Slots

_NOTHING: Final = np.uint64(0)
_PLACE_MASK: Final = ROW_SLOTS - 1
_TURN_MASK: Final = np.uint64(_PLACE_MASK)
_PLACES: Final = np.uint16(ROW_SLOTS)
_FIRST_BIT: Final = np.array(
    [ROW_SLOTS, *((mask & -mask).bit_length() - 1 for mask in range(1, 1 << ROW_SLOTS))], np.uint8
)
"""By a row's free slots, as the bits of a number: which is the first (16: none is free)."""


def free_places(keys: Keys, rows: Slots, held: Keys) -> tuple[Slots, Flags]:
    """A free slot for each key in its row, which holds the keys `held`; and where there is one.

    It is the first from a place on that differs from key to key, so that few collide.
    """
    free = np.packbits(held == _NOTHING, bitorder="little").view(np.uint16)
    turn = (keys & _TURN_MASK).astype(np.uint16)
    first = _FIRST_BIT.take((free >> turn) | (free << (_PLACES - turn)))
    places = rows * ROW_SLOTS + ((first + turn) & _PLACE_MASK)
    return places, first < ROW_SLOTS


def once(rows: Slots) -> Slots:
    """Sorted, and without those that come again."""
    ordered = np.sort(rows)
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    distinct: Slots = ordered[is_first]
    return distinct
