"""Messages as templates, or formats, get them, by their JSON: a bounded memo."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct
from xxhash import xxh3_128_digest

from router.tokens.beginnings import NONE, Beginnings
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.shelf import Shelf

M = TypeVar("M")

MESSAGE_BYTES: Final = 700
"""What an entry takes beside its texts: objects, key and the dict's part (measured)."""

BEGINNINGS_SHARE: Final = 16
MAX_LISTED: Final = 65_536
"""So many places in whole lists are held beside the memo, 16 bytes each."""

_split = msgspec.json.Decoder(list[Raw]).decode


class Heard(Struct, Generic[M]):
    """A chat's messages, which nobody may change, and each one's number.

    `before`, `now`: numbers of what is known of lists of messages: of the longest one that this one
    begins with, and of this one itself. NONE: there is none.
    """

    messages: list[M]
    numbers: list[int]
    before: int = NONE
    now: int = NONE


class Told(Generic[M]):
    """The same JSON gives the same object. `max_bytes`: for all that is remembered."""

    def __init__(self, max_bytes: int, read: Callable[[Raw], M]) -> None:
        # 128 bits under a seed that nobody knows: equal keys are equal texts
        self._seed = random.SystemRandom().getrandbits(64)
        share = max_bytes // BEGINNINGS_SHARE
        self._shelf: Shelf[bytes, tuple[M, int]] = Shelf(max_bytes - share)
        self._beginnings = Beginnings(share, self._seed)
        self._read = read
        self._numbers = count()
        self._lists: _Lists[M] = _Lists()

    @property
    def size_bytes(self) -> int:
        return self._shelf.size_bytes + self._beginnings.size_bytes

    def digest(self, raw: Raw) -> bytes:
        """Stands for any JSON; nobody can make up two that share one."""
        return xxh3_128_digest(raw, self._seed)

    def hear(self, raw: Raw) -> Heard[M]:
        """All messages of a list in JSON. Raises TokenizeFailed."""
        text, halves = memoryview(raw), self._shelf.halves
        look = self._beginnings.look(text)
        begun = look.found
        raws = split(raw if begun is None else _rest(text, look.rest))
        new = [*map(self.digest, raws)]
        listed = None if begun is None else self._lists.get(begun.number, halves)
        messages, numbers = listed or ([], [])
        keys = new
        if begun is not None and listed is None:
            keys = [*chain.from_iterable(begun.keys), *new]
        found = self._shelf.recall(keys)
        is_kept = None not in found or self._read_missing(found, keys, raws, raw)
        if found:
            messages = messages + [one[0] for one in found if one is not None]
            numbers = numbers + [one[1] for one in found if one is not None]
        before = NONE if begun is None else begun.number
        now = self._beginnings.note(text, look, new)
        if is_kept and now != NONE and now != before:
            self._lists.replace(before, now, (messages, numbers), halves)
        return Heard(messages, numbers, before, now)

    def _read_missing(
        self, found: list[tuple[M, int] | None], keys: Sequence[bytes], raws: list[Raw], raw: Raw
    ) -> bool:
        """`raws`: of the last ones; `raw`: all of the list. False: one is too large to be kept."""
        if None in found[: len(found) - len(raws)]:  # it was forgotten
            raws = split(raw)
        is_kept, fresh = True, dict[bytes, tuple[M, int]]()
        for at, one in enumerate(raws, len(found) - len(raws)):
            if found[at] is None:
                key = keys[at]
                if key not in fresh:
                    fresh[key] = self._read(one), next(self._numbers)
                    cost = 2 * memoryview(one).nbytes + MESSAGE_BYTES
                    is_kept = self._shelf.put(key, fresh[key], cost) and is_kept
                found[at] = fresh[key]
        return is_kept


class _Lists(Generic[M]):
    """Messages and numbers of whole lists, while the memo has them all: nothing is kept alive that
    it has let go. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: dict[int, tuple[list[M], list[int]]] = {}
        self._halves = 0
        self._size = 0

    def get(self, number: int, halves: int) -> tuple[list[M], list[int]] | None:
        """Of the beginning with this number."""
        with self._lock:
            if halves != self._halves:
                self._clear(halves)
            return self._lists.get(number)

    def replace(self, before: int, now: int, lists: tuple[list[M], list[int]], halves: int) -> None:
        """`halves`: as it was before they were asked for."""
        with self._lock:
            size = len(lists[0])
            if halves != self._halves or self._size + size > MAX_LISTED:
                self._clear(halves)
            gone = self._lists.pop(before, None)
            self._lists[now] = lists
            self._size += size - (0 if gone is None else len(gone[0]))

    def _clear(self, halves: int) -> None:
        self._lists, self._size, self._halves = {}, 0, halves


def split(raw: Raw) -> list[Raw]:
    """The items of a list in JSON. Raises TokenizeFailed."""
    try:
        return _split(raw)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise TokenizeFailed(Reason.INVALID) from exc


def _rest(text: memoryview, at: int) -> Raw:
    return Raw(b"[" + bytes(text[at:]))
