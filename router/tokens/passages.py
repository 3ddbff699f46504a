"""Messages by their JSON, and what a template's loops, or code, made of them: bounded memos."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from itertools import count, repeat
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Raw
from xxhash import xxh3_128_digest

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
M = TypeVar("M")
Key: TypeAlias = tuple[Any, ...]

MESSAGE_BYTES: Final = 700
PASSAGE_BYTES: Final = 600
"""What an entry takes beside its texts: objects, key and the dict's part (measured)."""

MAX_SETTINGS: Final = 1024
LARGEST_SHARE: Final = 4


class Shelf(Generic[K, V]):
    """Key → value, bounded in bytes; what was used longest ago goes first. For any thread."""

    def __init__(self, max_bytes: int) -> None:
        self.lock = threading.Lock()
        self.entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size_bytes = 0
        self._max_bytes = max_bytes

    def recall(self, keys: Sequence[K]) -> list[V | None]:
        """What is known of each. One pass in C for the look-ups, one for the order of use."""
        entries = self.entries
        with self.lock:
            found = list(map(entries.get, keys))
            if None not in found:
                deque(map(entries.move_to_end, keys), 0)
                return [entry[0] for entry in found if entry is not None]
            for key, entry in zip(keys, found, strict=True):
                if entry is not None:
                    entries.move_to_end(key)
        return [None if entry is None else entry[0] for entry in found]

    def recall_run(self, keys: Sequence[K]) -> list[V]:
        """The same of the first ones, up to one that isn't known."""
        entries = self.entries
        with self.lock:
            found = list(map(entries.get, keys))
            size = found.index(None) if None in found else len(found)
            deque(map(entries.move_to_end, keys[:size]), 0)
        return [entry[0] for entry in found[:size] if entry is not None]

    def put(self, key: K, value: V, cost: int) -> None:
        if cost * LARGEST_SHARE > self._max_bytes:
            return
        with self.lock:
            if key in self.entries:
                return
            self.entries[key] = value, cost
            self.size_bytes += cost
            while self.size_bytes > self._max_bytes:
                self.size_bytes -= self.entries.popitem(last=False)[1][1]


class Passage(msgspec.Struct, gc=False):
    """What one turn said. `after`: the changed attributes behind it. `ids`: the encoder's note.

    The text of what code laid out is its literal pieces, joined. No garbage collection looks at
    it: thousands are kept, and none is part of a cycle.
    """

    text: str
    after: Sequence[Any] = ()
    key_after: Key = ()
    ids: bytes | None = None
    opens: bool | None = None


Part: TypeAlias = str | Passage


def text_of(part: Part) -> str:
    return part if isinstance(part, str) else part.text


class Told(Generic[M]):
    """Messages as templates, or formats, get them, by their JSON. The same JSON gives the same
    object."""

    def __init__(self, max_bytes: int, read: Callable[[Raw], M]) -> None:
        self._shelf: Shelf[bytes, tuple[M, int]] = Shelf(max_bytes)
        self._read = read
        self._numbers = count()
        # 128 bits under a seed that nobody knows: equal keys are equal texts
        self._seed = random.SystemRandom().getrandbits(64)

    @property
    def size_bytes(self) -> int:
        return self._shelf.size_bytes

    def digest(self, raw: Raw) -> bytes:
        """Stands for any JSON; nobody can make up two that share one."""
        return xxh3_128_digest(raw, self._seed)

    def recall(self, raws: Sequence[Raw]) -> list[tuple[M, int]]:
        """Each message, which nobody may change, and its number."""
        seed = self._seed
        keys = [xxh3_128_digest(raw, seed) for raw in raws]
        found = self._shelf.recall(keys)
        if None in found:
            self._read_missing(found, keys, raws)
        return found  # type: ignore[return-value]

    def _read_missing(
        self, found: list[tuple[M, int] | None], keys: Sequence[bytes], raws: Sequence[Raw]
    ) -> None:
        fresh: dict[bytes, tuple[M, int]] = {}
        for at, (key, raw) in enumerate(zip(keys, raws, strict=True)):
            if found[at] is None:
                if key not in fresh:
                    fresh[key] = self._read(raw), next(self._numbers)
                    cost = 2 * memoryview(raw).nbytes + MESSAGE_BYTES
                    self._shelf.put(key, fresh[key], cost)
                found[at] = fresh[key]


class Passages:
    """What was said of messages. `settings`: all that a loop's turns share, as a number."""

    def __init__(self, max_bytes: int) -> None:
        self.shelf: Shelf[Key, Passage] = Shelf(max_bytes)
        self.hits = 0
        self.misses = 0
        self._settings: dict[Key, int] = {}
        self._numbers = count()

    def number_of(self, settings: Key) -> int:
        known = self._settings
        if settings not in known:
            if len(known) >= MAX_SETTINGS:
                known.clear()
            known[settings] = next(self._numbers)
        return known[settings]

    @property
    def size_bytes(self) -> int:
        return self.shelf.size_bytes

    def recall(self, settings: int, state: Key, rows: Sequence[Key]) -> list[Passage]:
        """The passages of the first turns, up to one that isn't known."""
        if not state:  # no turn changes what the next one depends on: nearly every loop
            found = self.shelf.recall_run(list(zip(repeat(settings), repeat(state), rows)))
        else:
            found = self._recall_chain(settings, state, rows)
        self.hits += len(found)
        self.misses += len(rows) - len(found)
        return found

    def recall_all(self, rows: Sequence[Key]) -> list[Passage | None]:
        """What is known of each row, for passages that depend on nothing but their row."""
        found = self.shelf.recall([(0, (), row) for row in rows])
        missed = found.count(None)
        self.hits += len(found) - missed
        self.misses += missed
        return found

    def _recall_chain(self, settings: int, state: Key, rows: Sequence[Key]) -> list[Passage]:
        entries, found = self.shelf.entries, []
        with self.shelf.lock:
            for row in rows:
                key = (settings, state, row)
                entry = entries.get(key)
                if entry is None:
                    break
                entries.move_to_end(key)
                passage = entry[0]
                found.append(passage)
                state = passage.key_after
        return found

    def remember(self, settings: int, state: Key, row: Key, passage: Passage) -> None:
        cost = 2 * len(passage.text) + PASSAGE_BYTES
        self.shelf.put((settings, state, row), passage, cost)
