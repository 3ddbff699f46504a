"""What became of the blocks that events named."""

from dataclasses import dataclass


@dataclass(slots=True)
class IndexStats:
    """All but `parked` only grow; unit: blocks."""

    stored: int = 0
    reported_again: int = 0
    """Stored already when they were said to be stored: reused, as far as can be told."""
    removed: int = 0
    removed_unknown: int = 0
    """Removals of blocks that we never had, or had forgotten."""
    parked: int = 0
    """Waiting for their parent now, in events (not blocks)."""
    orphaned: int = 0
    """Given up because the parent did not come in time, or too many waited."""
    refused: int = 0
    """Not taken because the index was at its bound."""
    trimmed: int = 0
    """Forgotten to make room at the bound: ends of the longest chains."""
    out_of_reach: int = 0
    """Of slower tiers, or of other machines."""
    partial_groups: int = 0
    """Of groups (sliding window, mamba) that don't tell how much of a prefix will hit."""
    placeholders: int = 0
    """Without tokens, as some offloading tiers publish them."""
    unreadable: int = 0
    """With hashes and tokens that don't fit together, or tokens that are no ids."""
    conflicts: int = 0
    """An engine hash that was in use for another block: the older meaning was forgotten."""
