"""Tokenize once: send the engine the ids that we computed instead of the text.

For completions, where a prompt of ids is part of the API and the reply has the same shape. SGLang
(from 0.5.13) takes a chat's ids too, as `input_ids` beside the messages, which its parsers of tools
and reasoning still need; other engines pass the field over. So chats get theirs only if asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Raw

from router.blocks.hashing import TYPE_CODE
from router.openai.fields import starts_with
from router.openai.generation import Generation, Kind

NEEDS_TEXT: Final = ("echo", "suffix", "prompt_embeds", "truncate_prompt_tokens", "use_beam_search")
"""Fields with which the engine would answer in another way if it got ids."""

SETTLED: Final = ("input_ids", "truncate_prompt_tokens")
"""Fields of a chat that say already which ids it is to be."""

_NOT_ASKED: Final = (b"null", b"false")
_decode = msgspec.json.Decoder(dict[str, Raw]).decode


def body_with_ids(generation: Generation, tokens: bytes, kinds: Collection[Kind]) -> bytes:
    """The body with ids, if it is of one of these kinds; the client's own bytes where ids could
    change the reply. Every other field keeps its JSON text; white space between fields goes."""
    kind = generation.kind
    if not tokens or kind not in kinds:
        return generation.body
    if kind is Kind.CHAT:
        return _with(generation, "input_ids", SETTLED, tokens)
    if kind is Kind.COMPLETION and starts_with(generation.fields.prompt, b'"'):
        return _with(generation, "prompt", NEEDS_TEXT, tokens)
    return generation.body


def _with(generation: Generation, field: str, unless: tuple[str, ...], tokens: bytes) -> bytes:
    body = _decode(generation.body)
    if any(bytes(body.get(name, Raw(b"null"))) not in _NOT_ASKED for name in unless):
        return generation.body
    ids = msgspec.json.encode(array(TYPE_CODE, tokens).tolist())
    return msgspec.json.encode({**body, field: Raw(ids)})
