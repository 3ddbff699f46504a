"""The garbage collector, kept out of a run."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet_gc() -> Iterator[None]:
    """A full collection over a large heap is a pause of tens of milliseconds: none while this is
    open. What a run makes has no cycles that matter; the rest is freed by reference counts."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
