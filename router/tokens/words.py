"""Ids of ASCII text, word by word, from a memo of words.

Before anything is looked up a tokenizer cuts text into words, and what it makes of a word depends
on nothing but the word. So text in known words costs a look-up for each: a sixth of what the
library takes for it.
"""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from tokenizers import AddedToken, Tokenizer

from router.blocks import as_tokens
from router.tokens.added_tokens import longest_of, matches
from router.tokens.word_cuts import ASCII, Cut, run_cuts, word_cut, word_cuts

EncodeText: TypeAlias = Callable[[str], bytes]
Known: TypeAlias = Mapping[str, bytes]

MAX_WORD_CHARS: Final = 256
"""Longer ones are the library's: it lets go of the GIL while it is at them."""

AT_ONCE: Final = 2048
"""So many words are looked up in one go, with the GIL held."""

WORD_BYTES: Final = 110
"""What a dict spends on an entry beside word and ids (measured, CPython 3.11)."""

SAMPLE_CHARS: Final = 512
"""So much of a longer text is looked at first, after one that was left to the library."""

NEW_SHARE: Final = 1 / 4
NEW_SHARE_OF_PATTERNS: Final = 1 / 16
"""A text of which more words are new is left to the library: one new word takes as long as it does
for several."""

FEW_WORDS: Final = 4
"""So many new words are always encoded."""

YOUNG_WORDS: Final = 2048
"""Until so many are known all are learnt, however many are new."""

LEARN_CHARS: Final = 256
"""Of a text that is left to the library one new word is learnt for so many characters."""

PROBES: Final = 300
PROBE_PARTS: Final = (
    *"the Word iPhone HTTPServer don't I'LL it'S 'tis 2024 3.14 0x1F a1b2 x_y foo() -> ==".split(),
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\t\t", "...", "!?", "{}", "$1", "//"),
    *ASCII,
)
PROBE_MARKS: Final = 24


class Words:
    """Make one with `of`. Any thread may use it."""

    def __init__(
        self,
        encode_word: EncodeText,
        cuts: Sequence[Cut],
        store: _Store,
        marks: Collection[str] = (),
        mark_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """`marks`: added tokens. `mark_ids`: theirs, if a text is cut at each and then encoded."""
        self._new_share = NEW_SHARE
        self._is_wary = False
        self._encode_word = encode_word
        self._cuts = cuts
        self._store = store
        self._first = sorted({mark[0] for mark in marks})
        self._marks = re.compile(longest_of(sorted(marks))) if self._first else None
        self._longest = max(map(len, marks), default=0)
        self._mark_ids = mark_ids
        self._plain_marks: Sequence[str] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_bytes: int) -> Words | None:
        """None: this tokenizer works in a way that isn't followed here."""
        cuts = word_cuts(tokenizer)
        if cuts is None or getattr(tokenizer.model, "dropout", None):
            return None
        model, added = tokenizer.model, dict(_added(tokenizer))
        ids = {one.content: as_tokens([token]).tobytes() for token, one in added.items()}
        # otherwise their neighbours, or how a text is written, have a say in where they match
        is_cut = not any(map(_looks_around, added.values()))

        def encode_word(word: str) -> bytes:
            tokens = model.tokenize(word.translate(_LETTERS))
            return as_tokens([token.id for token in tokens]).tobytes()

        def encode(texts: list[str]) -> list[bytes]:
            found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return [as_tokens(one.ids).tobytes() for one in found]

        words = cls(encode_word, cuts, _Store(max_bytes), list(ids), ids if is_cut else None)
        words._plain_marks = [one.content for one in added.values() if not one.special]
        return words if words._agrees_with(encode, list(ids)[-PROBE_MARKS:]) else None

    @classmethod
    def of_pattern(
        cls, pattern: str, encode_word: EncodeText, encode: EncodeText, max_bytes: int
    ) -> Words | None:
        """For a library that cuts by one expression, and has no tokens beside its words' own."""
        cut = word_cut(pattern)
        if cut is None:
            return None
        words = cls(encode_word, [cut], _Store(max_bytes))
        words._new_share = NEW_SHARE_OF_PATTERNS
        return words if words._agrees_with(lambda texts: list(map(encode, texts)), []) else None

    def that_take_special_tokens_for_text(self) -> Words:
        """The same memo, for a tokenizer that is told to (`encode_special_tokens`)."""
        return Words(self._encode_word, self._cuts, self._store, self._plain_marks)

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes

    def encode(self, text: str) -> bytes | None:
        """Ids of a text, as the library gives them; None: ask the library."""
        if not text.isascii():
            return None
        if not self._is_marked(text):
            return self._encode_plain(text)
        if self._marks is None or self._mark_ids is None:
            return None
        found, end = [], 0
        for mark in matches(self._marks, text, self._longest):
            found += [self._encode_plain(text[end : mark.start()]), self._mark_ids[mark.group()]]
            end = mark.end()
        found.append(self._encode_plain(text[end:]))
        return None if None in found else b"".join(found)  # type: ignore[arg-type]

    def _encode_plain(self, text: str) -> bytes | None:
        if self._is_wary and len(text) > SAMPLE_CHARS:
            sample, store = run_cuts(self._cuts, text[:SAMPLE_CHARS]), self._store
            if self._new(sample[:-1], store.newer, store.older, len(text)) is None:
                return None
        words = run_cuts(self._cuts, text)
        found, chars = [], 0
        for at in range(0, len(words), AT_ONCE):
            some = words[at : at + AT_ONCE]
            ids = self._ids(some)
            if ids is None:
                return None
            found.append(ids)
            chars += sum(map(len, some))
        return b"".join(found) if chars == len(text) else None

    def _ids(self, words: list[str]) -> bytes | None:
        newer, older = self._store.newer, self._store.older  # another thread may move them on
        try:
            return b"".join(map(newer.__getitem__, words))
        except KeyError:
            pass
        new = self._new(words, newer, older, sum(map(len, words)))
        if new is None:
            return None
        fresh = {word: older[word] for word in set(words) if word not in newer and word in older}
        if not self._learn(new, fresh):
            return None
        return b"".join([newer[word] if word in newer else fresh[word] for word in words])

    def _new(
        self, words: Sequence[str], newer: Known, older: Known, chars: int
    ) -> list[str] | None:
        """Those that are not known; None if they are too many, of a text of so many characters."""
        new = [word for word in set(words) if word not in newer and word not in older]
        is_young = len(newer) + len(older) < YOUNG_WORDS
        self._is_wary = not is_young and len(new) > max(FEW_WORDS, self._new_share * len(words))
        if not self._is_wary:
            return new
        self._learn(new[: 1 + chars // LEARN_CHARS], {})
        return None

    def _learn(self, new: Sequence[str], fresh: dict[str, bytes]) -> bool:
        """Add them to `fresh`, and remember that. False if one is left to the library."""
        if any(len(word) > MAX_WORD_CHARS for word in new):
            return False
        for word in new:
            fresh[word] = self._encode_word(word)
        self._store.remember(fresh)
        return True

    def _is_marked(self, text: str) -> bool:
        """Whether an added token stands in it."""
        if self._marks is None or not any(first in text for first in self._first):
            return False
        return next(matches(self._marks, text, self._longest), None) is not None

    def _agrees_with(
        self, library: Callable[[list[str]], list[bytes]], marks: Sequence[str]
    ) -> bool:
        """Not a proof: a look at whether the library cuts as was read from its description."""
        rng = random.Random(5)
        parts = [*PROBE_PARTS, *marks]
        texts = ["".join(rng.choices(parts, k=rng.randint(1, 12))) for _ in range(PROBES)]
        found = zip(map(self.encode, texts), library(texts), strict=True)
        return all(ids is None or ids == its for ids, its in found)


class _Store:
    """Words and their ids, in two halves: when the newer is full, the older is let go."""

    def __init__(self, max_bytes: int) -> None:
        self.newer: dict[str, bytes] = {}
        self.older: dict[str, bytes] = {}
        self.size_bytes = 0
        self._half_bytes = max_bytes // 2
        self._newer_bytes = 0
        self._lock = threading.Lock()

    def remember(self, fresh: Mapping[str, bytes]) -> None:
        with self._lock:
            for word, ids in fresh.items():
                if word not in self.newer:
                    self._put(word, ids, sys.getsizeof(word) + sys.getsizeof(ids) + WORD_BYTES)

    def _put(self, word: str, ids: bytes, cost: int) -> None:
        if cost > self._half_bytes:
            return
        if self._newer_bytes + cost > self._half_bytes:
            self.older, self.newer = self.newer, {}
            self.size_bytes, self._newer_bytes = self._newer_bytes, 0
        self.newer[word] = ids
        self._newer_bytes += cost
        self.size_bytes += cost


def _added(tokenizer: Tokenizer) -> list[tuple[int, AddedToken]]:
    """Those that can stand in ASCII text."""
    added = tokenizer.get_added_tokens_decoder().items()
    return [(token, one) for token, one in added if one.content and one.content.isascii()]


def _looks_around(token: AddedToken) -> bool:
    return token.lstrip or token.rstrip or token.single_word or token.normalized


def _byte_letters() -> dict[int, str]:
    """The letters that byte-level vocabularies write for ASCII: those that show are themselves."""
    return {code: chr(256 + number) for number, code in enumerate((*range(33), 127))}


_LETTERS: Final = _byte_letters()
