"""A memo that is bounded in bytes and forgets what was used longest ago."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

K = TypeVar("K", str, bytes)

ENTRY_OVERHEAD_BYTES: Final = 120
"""What an OrderedDict spends on an entry beside key and value, measured on CPython 3.11."""

LARGEST_SHARE: Final = 4
"""One entry may take 1/4 of the memo at most: a huge prompt must not push out all others."""


class Memo(Generic[K]):
    """Key → token ids. `max_bytes` counts keys, ids and the dict's own overhead.

    Any thread may use it: what a thread finds after its request's deadline is remembered too.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, bytes] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> bytes | None:
        with self._lock:
            ids = self._entries.get(key)
            if ids is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return ids

    def get_all(self, keys: Iterable[K]) -> list[bytes | None]:
        """`get` of each key, under the lock once."""
        entries = self._entries
        with self._lock:
            found = []
            for key in keys:
                ids = entries.get(key)
                if ids is not None:
                    entries.move_to_end(key)
                found.append(ids)
            self.misses += (missed := found.count(None))
            self.hits += len(found) - missed
        return found

    def peek_all(self, keys: Iterable[K]) -> list[bytes | None]:
        """The same, neither counted nor a use of the entries."""
        with self._lock:
            return [self._entries.get(key) for key in keys]

    def put(self, key: K, ids: bytes) -> None:
        cost = _cost(key, ids)
        with self._lock:
            if key in self._entries or cost * LARGEST_SHARE > self._max_bytes:
                return
            self._entries[key] = ids
            self.size_bytes += cost
            while self.size_bytes > self._max_bytes:
                self.size_bytes -= _cost(*self._entries.popitem(last=False))


def _cost(key: str | bytes, ids: bytes) -> int:
    return sys.getsizeof(key) + sys.getsizeof(ids) + ENTRY_OVERHEAD_BYTES
