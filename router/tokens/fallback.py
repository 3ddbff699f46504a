"""Tokenizers made of tokenizers: one after the other, one per model, none at all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from router.openai.generation import Generation
from router.tokens.protocol import FINAL, Reason, TokenizeFailed, Tokenizer


class NullTokenizer:
    """For models whose prompts are routed without ids."""

    async def tokenize(self, generation: Generation) -> bytes:
        raise TokenizeFailed(Reason.UNAVAILABLE)

    def recall(self, generation: Generation) -> bytes | None:
        return None


class FallbackTokenizer:
    """The first tokenizer that succeeds; if none does, the last reason that says something.

    A reason that lies in the prompt ends the search: the next tokenizer would say the same.
    `deadline_s` is for all of them together.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], deadline_s: float | None = None) -> None:
        self._tokenizers = tuple(tokenizers)
        self._deadline_s = deadline_s

    async def tokenize(self, generation: Generation) -> bytes:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._first(generation)
        except TimeoutError as exc:
            raise TokenizeFailed(Reason.TIMEOUT) from exc

    def recall(self, generation: Generation) -> bytes | None:
        """Of the first: what another one remembers it may not say."""
        return self._tokenizers[0].recall(generation) if self._tokenizers else None

    async def _first(self, generation: Generation) -> bytes:
        failure = TokenizeFailed(Reason.UNAVAILABLE)
        for tokenizer in self._tokenizers:
            try:
                return await tokenizer.tokenize(generation)
            except TokenizeFailed as exc:
                if exc.reason in FINAL:
                    raise
                if exc.reason is not Reason.UNAVAILABLE:  # says the least, so it hides no other
                    failure = exc
        raise failure


class ByModel:
    """Each model's own tokenizer, by the name in the request; `default` for all other names."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer], default: Tokenizer) -> None:
        self._tokenizers = dict(tokenizers)
        self._default = default

    def put(self, model: str, tokenizer: Tokenizer) -> None:
        """From now on this one for that model."""
        self._tokenizers[model] = tokenizer

    async def tokenize(self, generation: Generation) -> bytes:
        return await self._of(generation).tokenize(generation)

    def recall(self, generation: Generation) -> bytes | None:
        return self._tokenizers.get(generation.model, self._default).recall(generation)

    def _of(self, generation: Generation) -> Tokenizer:
        return self._tokenizers.get(generation.model, self._default)
