"""What every tokenizer promises, and the few ways in which one may fail."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from router.openai.generation import Generation


class Reason(StrEnum):
    """Why a prompt has no ids. Few and fixed, so that they can be a metric's label."""

    UNAVAILABLE = "unavailable"
    """No tokenizer for this model, or the replica that was asked gave no answer."""
    UNSUPPORTED = "unsupported"
    """A path or a field that this tokenizer does not know; another one may."""
    INVALID = "invalid"
    """The engine will refuse this prompt too."""
    MULTIMODAL = "multimodal"
    """Images, sound or embeddings: text alone does not say which blocks they fill."""
    TEMPLATE_ERROR = "template_error"
    """The chat template failed in a way that it did not intend."""
    TOO_LARGE = "too_large"
    """Longer than the limit for tokenizing here."""
    TIMEOUT = "timeout"
    """Not ready by the deadline."""
    UNTRUSTED = "untrusted"
    """The ids that were computed here were not the engine's; they have to prove themselves."""
    BUSY = "busy"
    """Too many prompts are being tokenized."""


FINAL: Final = frozenset({Reason.INVALID, Reason.MULTIMODAL, Reason.TOO_LARGE})
"""Reasons that lie in the prompt itself: another tokenizer would say the same."""


class TokenizeFailed(Exception):
    """No ids for this prompt. Routing goes on without them; the client is never told."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Tokenizer(Protocol):
    """Gives the ids that the engine will compute for a prompt."""

    async def tokenize(self, generation: Generation) -> bytes:
        """Ids as unsigned 32-bit integers in native order (see `blocks.as_tokens`).

        Raises TokenizeFailed. Bounded in time by the tokenizer's own deadline.
        """
        ...

    def recall(self, generation: Generation) -> bytes | None:
        """What `tokenize` would give, if that is remembered as a whole. Nothing here waits."""
        ...
