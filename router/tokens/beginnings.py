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

KEY_BYTES: Final = 60
ENTRY_BYTES: Final = 500
"""What the hash of a message takes, and an entry beside those (measured)."""

NONE: Final = 0

_MORE = re.compile(rb"[ \t\r\n]*([,\]])")


class Beginning(Struct, gc=False):
    """`end`: bytes up to the end of the last message. `keys`: of all its messages. `number`: never
    used again. `place`: the hash up to the last multiple before its end. `key`: its own."""

    end: int
    keys: Sequence[bytes]
    number: int
    place: bytes
    key: bytes


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
        self._ends: Shelf[bytes, Sequence[int]] = Shelf(max_bytes // 4)
        self._known: Shelf[bytes, Beginning] = Shelf(max_bytes - max_bytes // 4)
        self._numbers = count(NONE + 1)

    @property
    def size_bytes(self) -> int:
        return self._ends.size_bytes + self._known.size_bytes

    def look(self, text: memoryview) -> Look:
        """What is known of a list in JSON, from its bracket to its bracket."""
        hasher, places = xxh3_128(seed=self._seed), []
        start = 0
        for end in _places(len(text)):
            hasher.update(text[start:end])
            places.append((end, hasher.digest()))
            start = end
        look = Look(places)
        for place in reversed(places):
            for end in self._ends.get(place[1]) or ():
                known = self._known.get(self._key(place, text, end))
                more = None if known is None else _MORE.match(text, end)
                if more is not None:  # otherwise its last message goes on: 1, and 12
                    look.found, look.rest = known, more.end() - (more[1] == b"]")
                    return look
        return look

    def note(self, text: memoryview, look: Look, keys: Sequence[bytes]) -> int:
        """It came, with these messages; takes the place of the beginning that was found. Returns
        its number, NONE if it isn't kept."""
        end = len(bytes(text[-MOST_SPACES:-1]).rstrip()) + max(0, len(text) - MOST_SPACES)
        place = next((place for place in reversed(look.places) if place[0] <= end), None)
        if place is None:
            return NONE
        found = look.found
        if found is not None:
            if found.end == end:
                return found.number
            self._known.drop(found.key)
            self._set_ends(found.place, self._ends_but(found.place, found.end))
        key = self._key(place, text, end)
        made = Beginning(end, keys, next(self._numbers), place[1], key)
        self._set_ends(made.place, [end, *self._ends_but(made.place, end)][:MOST_ENDS])
        self._known.replace(key, made, KEY_BYTES * len(keys) + ENTRY_BYTES)
        return made.number

    def _ends_but(self, place: bytes, end: int) -> list[int]:
        return [one for one in self._ends.get(place) or () if one != end]

    def _set_ends(self, place: bytes, ends: Sequence[int]) -> None:
        if ends:
            self._ends.replace(place, ends, KEY_BYTES + ENTRY_BYTES)
        else:
            self._ends.drop(place)

    def _key(self, place: Place, text: memoryview, end: int) -> bytes:
        rest = xxh3_128_digest(text[place[0] : end], self._seed)
        return b"%b%b%d" % (place[1], rest, end)


def _places(length: int) -> Iterator[int]:
    """Before a text's last byte, so that what ends with the text's last item is behind each."""
    place = FIRST_BYTES
    while place < length:
        yield place
        place += min(place, STEP_BYTES)
