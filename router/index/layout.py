"""Where everything lies in the index's memory: one array of 32-bit cells, cut into units.

Unit 0 is the header. The others are segments of tables, directories of tables, slabs of records
(sets of replicas, tables' heads), or records of slots. An address is a cell's number, 0 is none.
The README says what a reader in another process needs of it.
"""

from typing import Final

from router.compiled import integer

UNIT_BITS: Final = integer(11)
UNIT: Final = integer(1 << UNIT_BITS)
UNIT_BYTES: Final = integer(4 * UNIT)
LAYOUT: Final = integer(0x57470001)
"""Changes with whatever this module says."""

# The header
MAGIC: Final = integer(0)
VERSION: Final = integer(1)
"""Odd while something is written."""
UNITS: Final = integer(2)
"""All that the bound allows, the header included."""
USED: Final = integer(3)
FRESH: Final = integer(4)
"""Units from here on were never used, and are zeros."""
FREE: Final = integer(5)
"""The first of those given back; each names the next."""
LOW: Final = integer(6)
"""When no more than so many are free, stores get none."""
KEPT: Final = integer(7)
"""`LOW` while something is stored, else 0: removals may need a set that is new."""
PRESSED: Final = integer(8)
"""Not 0: units are short."""
LOST: Final = integer(9)
"""Blocks forgotten for all replicas, because there was no room for what was left of a set."""
SCRATCH: Final = integer(10)
SLOTS_USED: Final = integer(11)
"""Slots from here on were never given out."""
BLOCKS: Final = integer(16)
"""Head of the table: block hash → set of holders."""
SETS: Final = integer(24)
"""Head of the table: a set's key → the set."""
SLABS: Final = integer(32)
"""By class of record, the first slab with room."""
LIVE: Final = integer(64)
"""A bit for each slot: does it match?"""
LIVE_WORDS: Final = integer(256)
SLOT_UNITS: Final = integer(LIVE + LIVE_WORDS)
"""Units with records of slots."""
MAX_SLOTS: Final = integer(32 * LIVE_WORDS)

# A slot's record: what is known of one life of a replica's cache
SLOT_BITS: Final = integer(3)
SLOTS_PER_UNIT: Final = integer(UNIT >> SLOT_BITS)
OWNER: Final = integer(0)
"""The replica's number; numbers are not used again."""
CAP: Final = integer(1)
"""Blocks deeper in their chain than this are not kept, and don't match."""
SLOT_KEY: Final = integer(2)  # and 3: 64 random bits; a set's key is those of its slots, XORed
OTHERS: Final = integer(4)
"""Head of the table: block hash → engine hashes beyond the first that stand for the block."""
UNCAPPED: Final = integer(2**32 - 2)

# A table's head
ROOT: Final = integer(0)
LEVEL: Final = integer(1)
"""The directory has 2**LEVEL entries; at 0 the root is the only segment."""
COUNT: Final = integer(2)
WIDTH: Final = integer(3)
"""Cells of an entry."""
PLACES: Final = integer(4)
"""Entries that a segment has room for."""
SLOT: Final = integer(5)
"""Of a shelf: whose it is."""
HEAD_CELLS: Final = integer(8)

# A segment: the entries of a range of keys. An entry: key (low half, high half), mark, the rest
SEGMENT_COUNT: Final = integer(0)
SEGMENT_LEVEL: Final = integer(1)
SEGMENT_START: Final = integer(2)
SEGMENT_HEAD: Final = integer(8)
KEY_HIGH: Final = integer(1)
MARK: Final = integer(2)
"""Never 0 in an entry. Blocks: the set; others: their number; a shelf: depth and copies."""
BLOCK: Final = integer(3)  # and 4: of a shelf's entry, the block hash
COPIES_BITS: Final = integer(16)
MAX_COPIES: Final = integer(2**COPIES_BITS - 1)
MAX_DEPTH: Final = integer(2**16 - 1)
"""Blocks deeper than this count as no deeper."""
MAP_WIDTH: Final = integer(3)
SHELF_WIDTH: Final = integer(5)

# A set's record
SET_CELLS: Final = integer(0)
"""Cells of its mask."""
SET_USES: Final = integer(1)
SET_KEY: Final = integer(2)  # and 3
SET_MASK: Final = integer(4)

# A slab: records of one size
SLAB_LIVE: Final = integer(0)
SLAB_FREE: Final = integer(1)
SLAB_NEXT: Final = integer(2)
SLAB_PREVIOUS: Final = integer(3)
SLAB_CLASS: Final = integer(4)
SLAB_FRESH: Final = integer(5)
SLAB_HEAD: Final = integer(8)

# What `store` makes of blocks that are held already
COPIES: Final = integer(0)
"""One more copy of each."""
REPORTED: Final = integer(1)
"""They are reported again."""
LEVELS: Final = integer(2)
"""Copies, and all lie at the same depth instead of one behind the other."""
