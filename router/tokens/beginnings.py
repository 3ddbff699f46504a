"""Lists of messages that came before, found again as the beginning of a longer one.

The next body of a conversation repeats the messages of its last one byte for byte. So its JSON is
hashed at a few places: where that is the hash of what came before, its messages are known without
being parsed or hashed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, TypeAlias

from msgspec import Struct
from xxhash import xxh3_128, xxh3_128_digest

from router.tokens.shelf import Shelf

FIRST_BYTES: Final = 4096
"""A list is hashed up to here, to twice as much, and so on up to multiples of `STEP_BYTES`; one
that is shorter is soon parsed."""

STEP_BYTES: Final = 16_384

MOST_ENDS: Final = 8
"""So many lists that share their hash up to the last such place are told apart."""

MOST_SPACES: Final = 64
"""Before a list's closing bracket, to be passed over."""

KEY_BYTES: Final = 80
ENTRY_BYTES: Final = 500
"""What the hash of a message and its places in lists take, and an entry beside those."""

NONE: Final = 0

_MORE = re.compile(rb"[ \t\r\n]*([,\]])")


class Beginning(Struct, gc=False):
    """`end`: bytes up to the end of the last message. `keys`: of all its messages, some at a time.
    `number`: never used again. `place`: hash up to the last place before its end, `rest`: of what
    is behind that."""

    end: int
    keys: Sequence[Sequence[bytes]]
    number: int
    place: bytes
    rest: bytes
    cost: int


Place: TypeAlias = tuple[int, bytes]


class Look(Struct, gc=False):
    """One list. `places`: how far it was hashed, with the hashes. `found`: the longest beginning of
    it that is known; `rest`: where its next message begins, or the list ends."""

    places: Sequence[Place]
    found: Beginning | None = None
    rest: int = 1


class Beginnings:
    """Bounded in bytes; what was used longest ago goes first. For any thread.

    `seed`: nobody knows it, so equal hashes, of 128 bits, are equal texts.
    """

    def __init__(self, max_bytes: int, seed: int) -> None:
        self._seed = seed
        self._known: Shelf[bytes, Sequence[Beginning]] = Shelf(max_bytes)
        """By place, the latest first."""
        self._numbers = count(NONE + 1)

    @property
    def size_bytes(self) -> int:
        return self._known.size_bytes

    def look(self, text: memoryview) -> Look:
        """What is known of a list in JSON, from its bracket to its bracket."""
        hasher, places = xxh3_128(seed=self._seed), []
        start = 0
        for end in _places(len(text)):
            hasher.update(text[start:end])
            places.append((end, hasher.digest()))
            start = end
        for place in reversed(places):
            for known in self._known.get(place[1]) or ():
                if known.end < len(text) and self._rest(text, place, known.end) == known.rest:
                    more = _MORE.match(text, known.end)
                    if more is not None:  # otherwise its last message goes on: 1, and 12
                        return Look(places, known, more.end() - (more[1] == b"]"))
        return Look(places)

    def note(self, text: memoryview, look: Look, keys: Sequence[bytes]) -> int:
        """It came, with messages of these keys behind those of the beginning that was found, whose
        place it takes. Returns its number, NONE if it isn't kept."""
        end = len(bytes(text[-MOST_SPACES:-1]).rstrip()) + max(0, len(text) - MOST_SPACES)
        found = look.found
        if found is not None and found.end == end:
            return found.number
        for place in reversed(look.places):
            if place[0] <= end:
                return self._put(look, keys, place[1], (end, self._rest(text, place, end)))
        return NONE

    def _put(
        self, look: Look, keys: Sequence[bytes], place: bytes, until: tuple[int, bytes]
    ) -> int:
        found, (end, rest) = look.found, until
        before = () if found is None else found.keys
        cost = KEY_BYTES * len(keys) + (ENTRY_BYTES if found is None else found.cost)
        made = Beginning(end, [*before, keys], next(self._numbers), place, rest, cost)
        if found is not None and found.place != place:
            self._set(found.place, self._others(found.place, found))
        self._set(place, [made, *self._others(place, found)][:MOST_ENDS])
        return made.number

    def _others(self, place: bytes, but: Beginning | None) -> list[Beginning]:
        return [one for one in self._known.get(place) or () if one is not but]

    def _set(self, place: bytes, known: Sequence[Beginning]) -> None:
        if known:
            self._known.replace(place, known, sum([one.cost for one in known]))
        else:
            self._known.drop(place)

    def _rest(self, text: memoryview, place: Place, end: int) -> bytes:
        return xxh3_128_digest(text[place[0] : end], self._seed)


def _places(length: int) -> Iterator[int]:
    """Before a text's last byte, so that what ends with the text's last item is behind each."""
    place = FIRST_BYTES
    while place < length:
        yield place
        place += min(place, STEP_BYTES)
