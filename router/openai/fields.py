"""The few body fields that routing and tokenizing read, kept as raw JSON until somebody asks.

Raw, because the engine is the judge of a body: a field of a type that we don't expect must not
become our error, and a nested field is decoded only by the part that needs it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

ABSENT: Final = Raw()
MAX_SCALAR_BYTES: Final = 16 * 1024
"""A string, flag or number longer than this is taken for something that we don't understand."""

_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})


class GenerationFields(msgspec.Struct, frozen=True, gc=False):
    """Raw JSON of each field; `ABSENT` where the body has none. All other fields are skipped."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    stream_options: Raw = ABSENT
    messages: Raw = ABSENT
    prompt: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    suffix: Raw = ABSENT
    system: Raw = ABSENT
    thinking: Raw = ABSENT
    output_config: Raw = ABSENT
    input: Raw = ABSENT
    input_ids: Raw = ABSENT
    token_ids: Raw = ABSENT
    tools: Raw = ABSENT
    tool_choice: Raw = ABSENT
    documents: Raw = ABSENT
    reasoning_effort: Raw = ABSENT
    chat_template: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    add_generation_prompt: Raw = ABSENT
    continue_final_message: Raw = ABSENT
    add_special_tokens: Raw = ABSENT
    truncate_prompt_tokens: Raw = ABSENT
    truncation_side: Raw = ABSENT
    cache_salt: Raw = ABSENT
    session_id: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    previous_response_id: Raw = ABSENT
    store: Raw = ABSENT
    n: Raw = ABSENT
    max_tokens: Raw = ABSENT
    max_completion_tokens: Raw = ABSENT
    echo: Raw = ABSENT
    response_format: Raw = ABSENT
    vllm_xargs: Raw = ABSENT

    def max_output_tokens(self) -> int | None:
        """What the client limits its answer to, in tokens, if it does so in a way we read."""
        wanted = integer(self.max_completion_tokens)
        return integer(self.max_tokens) if wanted is None else wanted

    def reports_reused(self) -> bool:
        """Whether the engine is to report the cached blocks that it reuses, as if stored anew."""
        if self.vllm_xargs is ABSENT:
            return False
        extra = scalar(self.vllm_xargs)
        return isinstance(extra, dict) and extra.get("kv_cache_report_mode") == "full"

    def wants_usage(self) -> bool:
        """Whether the client asked for a usage chunk at the end of its stream."""
        options = scalar(self.stream_options)
        return isinstance(options, dict) and options.get("include_usage") is True


def is_given(raw: Raw) -> bool:
    """False for a field that is missing or null."""
    return raw is not ABSENT and bytes(memoryview(raw)[:5]) not in (b"", b"null")


def starts_with(raw: Raw, opening: bytes) -> bool:
    """Whether the JSON value is of the type whose first byte is `opening`."""
    return bytes(memoryview(raw)[:1]) == opening


def scalar(raw: Raw) -> Any:
    """The decoded value of a field that is meant to be small; None if it is not."""
    if raw is ABSENT or not 0 < memoryview(raw).nbytes <= MAX_SCALAR_BYTES:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


def text(raw: Raw) -> str | None:
    """A string that is not empty, else None."""
    if raw is ABSENT:
        return None
    value = scalar(raw)
    return value if isinstance(value, str) and value else None


def integer(raw: Raw) -> int | None:
    """An integer, else None. A boolean is none."""
    value = scalar(raw)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(raw: Raw) -> bool | None:
    """A boolean as vLLM's lax validation reads it: "true", "yes" and 1 count. None: it is none."""
    if raw is ABSENT:
        return None
    value = scalar(raw)
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return value == 1
    if isinstance(value, str):
        word = value.lower()
        return True if word in _TRUE else False if word in _FALSE else None
    return None
