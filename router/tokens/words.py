"""Ids of ASCII text, word by word, from a memo of words.

Before anything is looked up a tokenizer cuts text into words, and what it makes of a word depends
on nothing but the word. So text in known words costs a look-up for each, by compiled code.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from tokenizers import AddedToken, Tokenizer

from router.blocks import as_tokens
from router.tokens.added_tokens import longest_of, matches
from router.tokens.automaton import begins_anew
from router.tokens.word_cuts import ASCII, word_cut, word_cuts
from router.tokens.word_store import Cuts, WordStore, compile_words

EncodeText: TypeAlias = Callable[[str], bytes]

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

PARAGRAPH: Final = "\n\n"
WORD_CHARACTERS: Final = string.ascii_letters + string.digits

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
        cuts: Cuts,
        store: WordStore,
        marks: Collection[str] = (),
        mark_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """`marks`: added tokens. `mark_ids`: theirs, if a text is cut at each and then encoded."""
        self._new_share = NEW_SHARE
        self._cuts_paragraphs = False
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
        if cuts is None or getattr(tokenizer.model, "dropout", None) or not compile_words():
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

        store = WordStore(max_bytes)
        words = cls(encode_word, Cuts.of(cuts), store, list(ids), ids if is_cut else None)
        words._plain_marks = [one.content for one in added.values() if not one.special]
        return words if words._agrees_with(encode, list(ids)[-PROBE_MARKS:]) else None

    @classmethod
    def of_pattern(
        cls, pattern: str, encode_word: EncodeText, encode: EncodeText, max_bytes: int
    ) -> Words | None:
        """For a library that cuts by one expression, and has no tokens beside its words' own."""
        cut = word_cut(pattern)
        if cut is None or not compile_words():
            return None
        words = cls(encode_word, Cuts.of([cut]), WordStore(max_bytes))
        words._new_share = NEW_SHARE_OF_PATTERNS
        words._cuts_paragraphs = begins_anew(cut, PARAGRAPH, WORD_CHARACTERS)
        return words if words._agrees_with(lambda texts: list(map(encode, texts)), []) else None

    def that_take_special_tokens_for_text(self) -> Words:
        """The same memo, for a tokenizer that is told to (`encode_special_tokens`)."""
        return Words(self._encode_word, self._cuts, self._store, self._plain_marks)

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes

    def begins_anew(self, before: str, text: str) -> bool:
        """Whether the ids of two texts in a row are those of each; told of two paragraphs."""
        is_cut = before.endswith(PARAGRAPH) and text[:1] in WORD_CHARACTERS and text != ""
        return is_cut and self._cuts_paragraphs and before.isascii()

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
        """Of text without added tokens."""
        letters = text.encode()
        if (known := self._store.recall(letters, self._cuts)) is not None:
            return known
        made: list[bytes] = []
        for found in self._store.look_up(letters, self._cuts):
            if found is None:
                return None
            if not found.gaps:
                made.append(found.ids.tobytes())
                continue
            missing = [text[start:end] for _, start, end in found.gaps]
            fresh = self._learn(set(missing), found.words, len(text))
            if fresh is None:
                return None
            done = 0
            for word, (place, _, _) in zip(missing, found.gaps, strict=True):
                made += found.ids[done:place].tobytes(), fresh[word]
                done = place
            made.append(found.ids[done:].tobytes())
        return b"".join(made)

    def _learn(self, new: Collection[str], words: int, chars: int) -> dict[str, bytes] | None:
        """Ids of words that are new; None if they are too many of so many words, in a text of so
        many characters."""
        is_young = len(self._store) < YOUNG_WORDS
        most = len(new) if is_young else max(FEW_WORDS, int(self._new_share * words))
        is_left = len(new) > most
        some = islice(new, 1 + chars // LEARN_CHARS) if is_left else new
        fresh = {word: self._encode_word(word) for word in some}
        self._store.remember(fresh)
        return None if is_left else fresh

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
