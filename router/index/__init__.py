"""Who holds which blocks."""

from router.index.memory import IndexStats, MemoryIndex
from router.index.protocol import PrefixIndex

__all__ = ["IndexStats", "MemoryIndex", "PrefixIndex"]
