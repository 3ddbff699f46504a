"""Words and their ids, in two tables: when the newer is full, the older is let go."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from router.blocks.hashing import BYTES_PER_TOKEN
from router.compiled import WORDS, Cells, compile_all, is_compiled
from router.tokens import word_scan
from router.tokens.automaton import Table
from router.tokens.word_scan import CUTS, HEAD, LEVEL, LEVELS, Numbers, Tables

AT_ONCE_CHARS: Final = 16_384
"""So much is looked up in one go, with the GIL held."""

MOST_GAPS: Final = 256
"""A go ends at so many words that are not known."""

SHORT_CHARS: Final = 4096
MOST_CUTS: Final = 8

SLOT_BYTES: Final = 8
CELL_BYTES: Final = 4
FIRST_SLOTS: Final = 1024


class Cuts(NamedTuple):
    """Tables one behind the other, and a scan's state at its start."""

    tables: Tables
    state: Numbers

    @classmethod
    def of(cls, tables: Sequence[Table]) -> Cuts:
        state = np.zeros(LEVELS + LEVEL * len(tables), np.int64)
        state[word_scan.BUDGET] = AT_ONCE_CHARS
        state[CUTS] = len(tables)
        state[LEVELS::LEVEL] = [0, *accumulate(map(len, tables[:-1]))]
        return cls(np.concatenate(tables), state)


class _Room(threading.local):
    """Each thread's, for texts that aren't long: making four arrays takes as long as a look-up of
    sixty words."""

    def __init__(self) -> None:
        self.data = np.empty(SHORT_CHARS, np.uint8)
        self.text = self.data.data
        self.ids = np.empty(SHORT_CHARS, np.uint32)
        self.found = self.ids.data
        self.state = np.empty(LEVELS + LEVEL * MOST_CUTS + word_scan.GAP, np.int64)


class Found(NamedTuple):
    """What one go has found: `ids`, and before which of them words are missing that begin and end
    at these places of the text. `words`: how many it was of in all."""

    ids: Cells
    gaps: Sequence[Sequence[int]] = ()
    words: int = 0


class WordStore:
    """Any thread may use it: compiled code holds the GIL, so who takes a table once has it whole.
    Call `compile_words` first."""

    def __init__(self, max_bytes: int) -> None:
        room = max_bytes // 2
        # half of the room, or less
        self._most_slots = 1 << (room // 2 // SLOT_BYTES).bit_length() >> 1
        self._most_cells = max(0, (room - self._most_slots * SLOT_BYTES) // CELL_BYTES)
        self._newer, self._older = self._table(FIRST_SLOTS), self._table(0)
        self._lock = threading.Lock()
        self._room = _Room()
        # words that share a place can only be made by who knows it
        self._key = random.SystemRandom().getrandbits(62) | 1

    def __len__(self) -> int:
        """Words that are known; one that is in both halves counts twice."""
        return sum([int(words[word_scan.ENTRIES]) for words in (self._newer, self._older)])

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, (self._newer, self._older)))

    def recall(self, text: bytes, cuts: Cuts) -> bytes | None:
        """Ids of an ASCII text that is not long, if all its words are known."""
        size, first, room = len(text), len(cuts.state), self._room
        if not 0 < size <= SHORT_CHARS or first > len(room.state) - word_scan.GAP:
            return None
        room.text[:size] = text
        state = room.state
        state[:first] = cuts.state
        state[word_scan.SIZE], state[word_scan.KEY] = size, self._key
        result = word_scan.scan(room.data, cuts.tables, state, self._newer, self._older, room.ids)
        return None if result < 0 else room.found[:result].tobytes()

    def look_up(self, text: bytes, cuts: Cuts) -> Iterator[Found | None]:
        """All words of an ASCII text, in some goes. None, at the end: one is too long."""
        size, tables, data = len(text), cuts.tables, np.frombuffer(bytearray(text), np.uint8)
        gaps = len(cuts.state)
        state = np.empty(gaps + word_scan.GAP * min(size, MOST_GAPS), np.int64)
        state[:gaps] = cuts.state
        state[word_scan.SIZE], state[word_scan.KEY] = size, self._key
        room = min(size, AT_ONCE_CHARS + word_scan.MAX_WORD_CHARS)
        at = 0
        while at < size:
            ids = np.empty(room, np.uint32)
            result = word_scan.scan(data, tables, state, self._newer, self._older, ids)
            if result >= 0:  # nearly every text
                yield Found(ids[:result])
                return
            if result == word_scan.TOO_LONG:
                yield None
                return
            at, *_, count, missing, words = state[:LEVELS].tolist()
            flat = state[gaps : gaps + word_scan.GAP * missing]
            yield Found(ids[:count], flat.reshape(missing, word_scan.GAP).tolist(), words)

    def remember(self, fresh: Mapping[str, bytes]) -> None:
        """More words, all of ASCII characters."""
        known = {word: ids for word, ids in fresh.items() if self._fits(word, ids)}
        if not known:
            return
        data = np.frombuffer(bytearray("".join(known), "ascii"), np.uint8)
        ends = np.array([*accumulate(map(len, known))], np.int64)
        ids = np.frombuffer(bytearray(b"".join(known.values())), np.uint32)
        id_ends = np.array([*accumulate(map(len, known.values()))], np.int64) // BYTES_PER_TOKEN
        state = np.zeros(LEVELS, np.int64)
        state[word_scan.KEY] = self._key
        with self._lock:
            while True:
                newer = self._newer
                at = word_scan.learn(data, ends, ids, id_ends, state, newer)
                if at == len(ends):
                    return
                state[word_scan.AT] = at
                slots, words = int(newer[word_scan.SLOTS]), int(newer[word_scan.ENTRIES])
                if 2 * (words + 1) > slots and slots < self._most_slots:
                    self._newer = self._table(2 * slots)
                    word_scan.enlarge(newer, self._newer)
                else:
                    self._newer, self._older = self._table(FIRST_SLOTS), newer

    def _fits(self, word: str, ids: bytes) -> bool:
        """Whether it would if nothing else were there. Of more ids than characters, or of none, no
        word is kept."""
        count, length = len(ids) // BYTES_PER_TOKEN, len(word)
        size = 1 + count + (length + 3) // CELL_BYTES
        is_usual = 0 < count <= length <= word_scan.MAX_WORD_CHARS
        return is_usual and size <= self._most_cells and self._most_slots > 1

    def _table(self, slots: int) -> Cells:
        """An empty one. What is never written to takes no memory."""
        slots = min(slots, self._most_slots) or 1
        behind = HEAD + 2 * slots
        words = np.zeros(behind + (self._most_cells if slots > 1 else 0), np.uint32)
        words[word_scan.USED], words[word_scan.SLOTS] = behind, slots
        return words


def _size_bytes(words: Cells) -> int:
    """Of entries, and of two slots for each."""
    used, count, slots, *_ = words[:HEAD].tolist()
    return int(CELL_BYTES * (used - HEAD - 2 * slots) + 2 * SLOT_BYTES * count)


def compile_words() -> bool:
    """Takes a while the first time. False: nothing is compiled in this process."""
    compile_all(WORDS)
    return is_compiled(word_scan.scan)
