"""A tekken.json's vocabulary, by mistral-common. No text can write a special token."""

from __future__ import annotations

import importlib
from array import array
from pathlib import Path
from typing import Any

from router.blocks import as_tokens
from router.tokens.encoder import LITERAL, Edges, PieceEncoder, literal, literal_pieces
from router.tokens.memo import Memo
from router.tokens.model_dir import UnusableModelDir
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.words import Words


class TekkenEncoder(PieceEncoder):
    """All its pieces are literal. `words_bytes`: for the memo of words."""

    def __init__(self, file: Path, memo: Memo[str], words_bytes: int = 0) -> None:
        """Raises UnusableModelDir."""
        super().__init__(memo)
        self.library = _library(file)
        self._tekken = self.library.instruct_tokenizer.tokenizer
        self._words = self._learn_words(words_bytes) if words_bytes else None
        self.edges = Edges(as_tokens([self._tekken.bos_id]).tobytes())

    @property
    def size_bytes(self) -> int:
        return self.memo.size_bytes + (0 if self._words is None else self._words.size_bytes)

    @property
    def cuts(self) -> bool:
        return True

    def token_text(self, token: int | None) -> str | None:
        if token is None or not 0 <= token < self._tekken.n_words:
            return None
        text: str = self._tekken.id_to_piece(token)
        return text

    def pieces(self, text: str) -> list[str]:
        if text.startswith(LITERAL):
            return literal_pieces(text)
        return [literal("", text)] if text else []

    def opens(self, text: str) -> bool:
        return text.startswith(LITERAL)

    def begins_anew(self, before: str, text: str) -> bool:
        """Whether the ids of two texts in a row are those of each. False if that is not sure."""
        return self._words is not None and self._words.begins_anew(before, text)

    def _encode(self, piece: str) -> bytes:
        _, special, text = piece.split(LITERAL, 2)
        head = [self._tekken.get_special_token(special)] if special else []
        return as_tokens(head).tobytes() + self._text_ids(text)

    def _text_ids(self, text: str) -> bytes:
        ids = None if self._words is None else self._words.encode(text)
        if ids is not None or not text:
            return ids or b""
        try:
            return as_tokens(self._tekken.encode(text, bos=False, eos=False)).tobytes()
        except ValueError as exc:  # its regex gives up on a million spaces; so does the engine's
            raise TokenizeFailed(Reason.INVALID) from exc

    def _learn_words(self, max_bytes: int) -> Words | None:
        """None: this release of the library has no call that encodes a word and nothing else."""
        tekken, shift = self._tekken, self._tekken.num_special_tokens
        model = getattr(tekken, "_model", None)
        pattern = getattr(model, "_pat_str", None)
        encode_word = getattr(model, "_encode_single_piece", None)
        if pattern is None or encode_word is None:
            return None

        def word_ids(word: str) -> bytes:
            return array("I", [token + shift for token in encode_word(word.encode())]).tobytes()

        def library(text: str) -> bytes:
            return as_tokens(tekken.encode(text, bos=False, eos=False)).tobytes()

        return Words.of_pattern(pattern, word_ids, library, max_bytes)


def _library(file: Path) -> Any:
    try:
        tokenizers = importlib.import_module("mistral_common.tokens.tokenizers.mistral")
        validators = importlib.import_module("mistral_common.protocol.instruct.validator")
    except ImportError as exc:
        raise UnusableModelDir(
            f"{file}: this model needs mistral-common; pip install warmgate[mistral], or name no "
            "directory for it, and its replicas' /tokenize is asked (tokens.remote)"
        ) from exc
    try:
        return tokenizers.MistralTokenizer.from_file(file, mode=validators.ValidationMode.test)
    except Exception as exc:
        raise UnusableModelDir(f"{file} cannot be read: {exc!r}") from exc
