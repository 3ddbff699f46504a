"""Who holds which blocks."""

from router.index.memory import MemoryIndex
from router.index.protocol import PrefixIndex
from router.index.stats import IndexStats

__all__ = ["IndexStats", "MemoryIndex", "PrefixIndex"]
