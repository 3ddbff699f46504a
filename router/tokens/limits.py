"""What tokenizing may cost, and what its engine was told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from router.tokens.workers import DEFAULT_LIMITS as DEFAULT_WORKERS
from router.tokens.workers import WorkerLimits

WHOLE_SHARE: Final = 8
WORDS_SHARE: Final = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What tokenizing may cost.

    `inline_bytes`: bodies up to this size are decoded and rendered on the event loop (1 ms);
    `inline_chars`: up to so many new characters are encoded there (1.5 ms). More goes to the
    threads. `inline_s`: a template that computes longer goes to them too, from then on, and
    ends after `render_s` of computing: it takes 10 ms for the longest of prompts.
    """

    deadline_s: float = 1.0
    inline_bytes: int = 64 * 1024
    inline_chars: int = 8192
    inline_s: float = 0.02
    render_s: float = 0.25
    max_bytes: int = 4 * 1024 * 1024
    workers: WorkerLimits = DEFAULT_WORKERS
    memo_bytes: int = 64 * 1024 * 1024

    def share_memo(self, parts: int) -> Limits:
        """The same limits with one of `parts` shares of the memo."""
        return replace(self, memo_bytes=self.memo_bytes // parts)


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """Flags of the engine that change its prompts; the router must be told the same.

    `chat_template`: source given with --chat-template. `parts`: --chat-template-content-format
    (True openai, False string, None auto). `variables`: --default-chat-template-kwargs.
    """

    chat_template: str | None = None
    parts: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoShares:
    """How many bytes each part of a tokenizer's memo may take.

    `told`: messages, and what was made of them, for each of the layouts. `words`: a megabyte holds
    six thousand.
    """

    whole: int
    words: int
    told: int
    pieces: int

    @classmethod
    def of(cls, max_bytes: int, layouts: int) -> Self:
        """An eighth for whole prompts, one for words; half of the rest is for pieces."""
        whole, words = max_bytes // WHOLE_SHARE, max_bytes // WORDS_SHARE
        told = (max_bytes - whole) // 2 // layouts
        return cls(whole, words, told, max_bytes - whole - words - told * layouts)


DEFAULT_LIMITS: Final = Limits()
NO_FLAGS: Final = EngineFlags()
