"""Who holds which blocks."""

from router.index.memory import MemoryIndex
from router.index.protocol import PrefixIndex
from router.index.stats import IndexStats
from router.index.tiers import Load, Loads, TieredIndex

__all__ = ["IndexStats", "Load", "Loads", "MemoryIndex", "PrefixIndex", "TieredIndex"]
