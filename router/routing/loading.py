"""What slower tiers of an engine's cache add to a hit."""

from collections.abc import Sequence

from router.index.tiers import Load


def loading(parts: Sequence[Load], held: int, near: int, block_size: int) -> tuple[int, float]:
    """Where a hit ends that slower tiers add to, in blocks, and how long loading them takes, in ms.

    `parts` begin behind `held` blocks; of them, those up to `near` need not be loaded.
    """
    end, load_ms = held, 0.0
    for part in parts:
        first, end = max(end, near), end + part.blocks
        load_ms += max(0, end - first) * block_size * part.ms_per_token
    return max(near, end), load_ms
