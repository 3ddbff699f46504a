"""Real English words, from a seed: the same seed gives the same text on every machine.

Tokenizers cut random characters into far more tokens than prose, and a list of token ids is no
text that a server would see; so prompts are common words, and `tokens_per_word` (measured against
the target before a run) turns a wished number of tokens into a number of words.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import resources
from typing import Final

POOL_WORDS: Final = 1 << 16
KEY_WORDS: Final = 6
"""Words that spell a passage's key: 1,624**6 keys, so two passages don't begin alike by chance."""


def load_vocabulary() -> tuple[str, ...]:
    """The words of words.txt: lower case, no duplicates, 1,624 of them."""
    return tuple(resources.files("loadgen").joinpath("words.txt").read_text("ascii").split())


class Prose:
    """Passages of words, each named by a key: equal keys give equal text, others differ at once.

    A passage starts with words that spell its key, and goes on with a slice of a pool that was
    drawn once; so that 10,000 words cost microseconds while a run is being timed. `vocabulary`
    takes the place of the common words.
    """

    def __init__(
        self,
        seed: int,
        tokens_per_word: float = 1.0,
        vocabulary: Sequence[str] | None = None,
    ) -> None:
        if tokens_per_word <= 0:
            raise ValueError("tokens_per_word must be positive")
        self.seed = seed
        self.tokens_per_word = tokens_per_word
        self.vocabulary = vocabulary
        self._vocabulary = vocabulary or load_vocabulary()
        pool = random.Random(f"pool {seed}").choices(self._vocabulary, k=POOL_WORDS)
        self._pool = pool

    def words_for(self, tokens: float) -> int:
        """How many words make about `tokens` tokens; at least one."""
        return max(1, round(tokens / self.tokens_per_word))

    def passage(self, key: str, tokens: float) -> str:
        """About `tokens` tokens of words for `key`; a shorter passage of a key begins a longer."""
        count = self.words_for(tokens)
        rng = random.Random(f"{self.seed} {key}")
        words = rng.choices(self._vocabulary, k=KEY_WORDS)
        start = rng.randrange(POOL_WORDS)
        missing = count - KEY_WORDS
        while missing > 0:
            words += self._pool[start : start + missing]
            missing, start = count - len(words), 0
        return " ".join(words[:count])
