"""A dict that is bounded in bytes and forgets what was not used for longest."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LARGEST_SHARE: Final = 4
"""One entry may take 1/4 of the room at most."""


class Shelf(Generic[K, V]):
    """Key → value, in two halves: when the newer is full, the older is let go. What is asked for
    moves to the newer, so no order of use has to be kept. For any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self.lock = threading.Lock()
        self._newer: dict[K, tuple[V, int]] = {}
        self._older: dict[K, tuple[V, int]] = {}
        self._newer_bytes = 0
        self._older_bytes = 0
        self._max_bytes = max_bytes
        self.halves = 0
        """How many have been let go: while it stays the same, so does what was asked for."""

    @property
    def size_bytes(self) -> int:
        return self._newer_bytes + self._older_bytes

    def get(self, key: K) -> V | None:
        return self.recall([key])[0]

    def recall(self, keys: Sequence[K]) -> list[V | None]:
        """What is known of each."""
        with self.lock:
            found = list(map(self._newer.get, keys))
            if None in found and self._older:
                for at, key in enumerate(keys):
                    if found[at] is None:
                        found[at] = self._renewed(key)
        return [None if entry is None else entry[0] for entry in found]

    def recall_run(self, keys: Sequence[K]) -> list[V]:
        """The same of the first ones, up to one that isn't known."""
        with self.lock:
            found = list(map(self._newer.get, keys))
            size = found.index(None) if None in found else len(found)
            run = [entry[0] for entry in found[:size] if entry is not None]
            while self._older and size < len(keys):
                entry = self.lookup(keys[size])
                if entry is None:
                    break
                run.append(entry)
                size += 1
        return run

    def lookup(self, key: K) -> V | None:
        """As `get`, for who holds the lock."""
        entry = self._newer.get(key) or self._renewed(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, cost: int) -> bool:
        """Unless it has one. False: it is too large."""
        with self.lock:
            if key not in self._newer and key not in self._older:
                self._put(key, (value, cost))
        return cost * LARGEST_SHARE <= self._max_bytes

    def replace(self, key: K, value: V, cost: int) -> None:
        """Whether it has one or not."""
        with self.lock:
            self._drop(key)
            self._put(key, (value, cost))

    def drop(self, key: K) -> None:
        with self.lock:
            self._drop(key)

    def _renewed(self, key: K) -> tuple[V, int] | None:
        entry = self._older.pop(key, None)
        if entry is not None:
            self._older_bytes -= entry[1]
            self._put(key, entry)
        return entry

    def _put(self, key: K, entry: tuple[V, int]) -> None:
        cost = entry[1]
        if cost * LARGEST_SHARE > self._max_bytes:
            return
        if self._newer_bytes + cost > self._max_bytes // 2:
            self._older, self._newer = self._newer, {}
            self._older_bytes, self._newer_bytes = self._newer_bytes, 0
            self.halves += 1
        self._newer[key] = entry
        self._newer_bytes += cost

    def _drop(self, key: K) -> None:
        if (entry := self._newer.pop(key, None)) is not None:
            self._newer_bytes -= entry[1]
        elif (entry := self._older.pop(key, None)) is not None:
            self._older_bytes -= entry[1]
