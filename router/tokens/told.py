"""Messages as templates, or formats, get them, by their JSON: a bounded memo."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
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

    @property
    def size_bytes(self) -> int:
        return self._shelf.size_bytes + self._beginnings.size_bytes

    def digest(self, raw: Raw) -> bytes:
        """Stands for any JSON; nobody can make up two that share one."""
        return xxh3_128_digest(raw, self._seed)

    def hear(self, raw: Raw) -> Heard[M]:
        """All messages of a list in JSON. Raises TokenizeFailed."""
        text = memoryview(raw)
        look = self._beginnings.look(text)
        begun = look.found
        raws = split(raw if begun is None else _rest(text, look.rest))
        keys = (
            [*map(self.digest, raws)] if begun is None else [*begun.keys, *map(self.digest, raws)]
        )
        found = self._shelf.recall(keys)
        if None in found:
            if None in found[: len(found) - len(raws)]:  # it was forgotten
                raws = split(raw)
            self._read_missing(found, keys, raws)
        now = self._beginnings.note(text, look, keys)
        messages = [one[0] for one in found if one is not None]
        numbers = [one[1] for one in found if one is not None]
        return Heard(messages, numbers, NONE if begun is None else begun.number, now)

    def _read_missing(
        self, found: list[tuple[M, int] | None], keys: Sequence[bytes], raws: Sequence[Raw]
    ) -> None:
        """`raws`: of the last ones, among which all are that are missing."""
        fresh: dict[bytes, tuple[M, int]] = {}
        for at, raw in enumerate(raws, len(found) - len(raws)):
            if found[at] is None:
                key = keys[at]
                if key not in fresh:
                    fresh[key] = self._read(raw), next(self._numbers)
                    cost = 2 * memoryview(raw).nbytes + MESSAGE_BYTES
                    self._shelf.put(key, fresh[key], cost)
                found[at] = fresh[key]


def split(raw: Raw) -> list[Raw]:
    """The items of a list in JSON. Raises TokenizeFailed."""
    try:
        return _split(raw)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise TokenizeFailed(Reason.INVALID) from exc


def _rest(text: memoryview, at: int) -> Raw:
    return Raw(b"[" + bytes(text[at:]))
