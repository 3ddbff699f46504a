"""What the engine says: sentences of words, the same for the same prompt.

Every token is a whole word, or a mark, that the tokenizer yields again when the text comes back in
the next turn's prompt. So blocks of answers are hit in later turns as with a real model, and each
token is visible, complete UTF-8: pieces can be sent as they come.
"""

import re
from array import array
from dataclasses import dataclass
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from workers.engine.tokenizer import Tokenizer

SENTENCE_WORDS: Final = (5, 14)
_SHAPES: Final = {
    "inner": re.compile(r" [a-z]{2,}"),
    "opening": re.compile(r" [A-Z][a-z]+"),
    "first": re.compile(r"[A-Z][a-z]{2,}"),
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that answers are made of, and each one's text.

    `pieces`: by token id, "" for tokens that are never said. `json_pieces`: the same, escaped for
    use inside a JSON string.
    """

    end: int
    full_stop: int
    first: tuple[int, ...]
    opening: tuple[int, ...]
    inner: tuple[int, ...]
    pieces: tuple[str, ...]
    json_pieces: tuple[bytes, ...]


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Sort a tokenizer's words by where in a sentence they can stand."""
    words: dict[str, list[int]] = {shape: [] for shape in _SHAPES}
    [full_stop] = tokenizer.encode(".")
    pieces = [""] * tokenizer.size
    pieces[full_stop] = "."
    for token in range(tokenizer.size):
        text = tokenizer.decode([token])
        for shape, pattern in _SHAPES.items():
            if pattern.fullmatch(text) and list(tokenizer.encode(text)) == [token]:
                words[shape].append(token)
                pieces[token] = text
    return Vocabulary(
        end=tokenizer.end_token,
        full_stop=full_stop,
        **{shape: tuple(tokens) for shape, tokens in words.items()},
        pieces=tuple(pieces),
        json_pieces=tuple(msgspec.json.encode(piece)[1:-1] for piece in pieces),
    )


class Story:
    """An endless or ending answer; an `Answer` of `workers.engine.sequence`."""

    def __init__(
        self, vocabulary: Vocabulary, seed: int, length: int | None, *, continues: bool
    ) -> None:
        """`length`: words and marks before the end token; None never ends.

        `continues`: the prompt's text goes on (a completion), so the first word has a space.
        """
        self._vocabulary = vocabulary
        self._seed = seed
        self._length = length
        self._said = 0
        self._left = self._sentence_length()
        self._next_words = vocabulary.opening if continues else vocabulary.first

    def next_token(self) -> int:
        """The next word, a full stop, or (once `length` is reached) the end token."""
        if self._said == self._length:
            return self._vocabulary.end
        self._said += 1
        if not self._left:
            self._left = self._sentence_length()
            self._next_words = self._vocabulary.opening
            return self._vocabulary.full_stop
        self._left -= 1
        words, self._next_words = self._next_words, self._vocabulary.inner
        draw = self._draw() / 2**64
        # Squared: like in real text, few words make up most of it.
        return words[int(draw * draw * len(words))]

    def _sentence_length(self) -> int:
        low, high = SENTENCE_WORDS
        return low + self._draw() % (high - low + 1)

    def _draw(self) -> int:
        self._seed = xxh3_64_intdigest(b"story", self._seed)
        return self._seed


@dataclass(frozen=True, slots=True)
class Author:
    """Begins answers. `lengths`: shortest and longest answer in tokens; (0, 0) never ends."""

    vocabulary: Vocabulary
    lengths: tuple[int, int] = (64, 448)

    def begin(
        self,
        prompt: "array[int]",
        seed: int,
        *,
        at_least: int | None = 0,
        continues: bool = False,
    ) -> Story:
        """The answer to this prompt; another `seed` (0..2**64-1) gives another answer.

        It does not end by itself before `at_least` tokens; None: it never does.
        """
        start = xxh3_64_intdigest(prompt, seed)
        low, high = self.lengths
        length = None
        if at_least is not None and high:
            length = max(at_least, low + start % (high - low + 1))
        return Story(self.vocabulary, start, length, continues=continues)
