"""A folder in memory for the processes of one `serve --processes`, gone when they are."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "warmgate-"
_LOCK: Final = "lock"
_YOUNG_S: Final = 60.0
"""A folder without a lock may be one that is just being made."""


def home() -> Path:
    """Where such folders are: memory, if the system has a place for it."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def run_folder(parent: Path) -> Iterator[Path]:
    """Make one, and remove those that supervisors left which were killed. OSError.

    Whoever owns one holds a lock in it, which the system takes back however it ends.
    """
    sweep(parent)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (made / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep(parent: Path) -> list[Path]:
    """Remove folders that nobody holds any more. Returns them."""
    removed = []
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or being removed by another
            if folder.stat().st_uid == os.getuid() and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _is_left(folder: Path) -> bool:
    lock = folder / _LOCK
    if not lock.exists():
        return time.time() - folder.stat().st_mtime > _YOUNG_S
    with lock.open("r+") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
