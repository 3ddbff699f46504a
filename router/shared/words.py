"""What each process of a host says to all others, in memory that they share.

Each has a shelf for its last words, which only it writes, and says last how many there were. A word
that is written over while it is read is not heard. Words outlive who said them, so that a process
that starts knows what its siblings know.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

WORDS: Final = 64
"""Of each process, that can still be heard."""
MOST_BYTES: Final = 246
"""Of one word."""
_HEAD: Final = Struct("<QH")
_PLACE: Final = _HEAD.size + MOST_BYTES
_NUMBER_BYTES: Final = 8


class WordBoard:
    """One process' view. `slot`: its own."""

    def __init__(self, path: Path, slot: int, processes: int, slots: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        counts = slots * _NUMBER_BYTES
        size = counts + slots * WORDS * _PLACE
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)
        self._said = memoryview(self._memory)[:counts].cast("Q")
        self._counts = self._said[:processes]
        self._slot, self._shelves_at = slot, counts
        self._heard = [0] * processes
        """How many of each, so far; our own are those of who had our slot before."""
        self._seen = b""

    def say(self, word: bytes) -> bool:
        """False: it is too long, and not said."""
        if len(word) > MOST_BYTES:
            return False
        number = self._said[self._slot] + 1
        at = self._at(self._slot, number)
        memory = self._memory
        _HEAD.pack_into(memory, at, 0, len(word))  # not to be heard while it is written
        memory[at + _HEAD.size : at + _HEAD.size + len(word)] = word
        _HEAD.pack_into(memory, at, number, len(word))
        self._said[self._slot] = number
        if self._slot < len(self._heard):
            self._heard[self._slot] = number
        return True

    def hear(self) -> list[bytes]:
        """What the others have said since the last time, as far as it can still be heard."""
        if (seen := self._counts.tobytes()) == self._seen:
            return []
        self._seen = seen
        words: list[bytes | None] = []
        for slot, count in enumerate(self._counts.tolist()):
            first = max(self._heard[slot], count - WORDS) + 1
            words += [self._read(slot, number) for number in range(first, count + 1)]
            self._heard[slot] = count
        return [word for word in words if word is not None]

    def close(self) -> None:
        self._counts.release()
        self._said.release()
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _at(self, slot: int, number: int) -> int:
        return self._shelves_at + (slot * WORDS + number % WORDS) * _PLACE

    def _read(self, slot: int, number: int) -> bytes | None:
        at = self._at(slot, number)
        found, size = _HEAD.unpack_from(self._memory, at)
        word = self._memory[at + _HEAD.size : at + _HEAD.size + min(size, MOST_BYTES)]
        is_whole = found == number and _HEAD.unpack_from(self._memory, at) == (number, size)
        return word if is_whole else None
