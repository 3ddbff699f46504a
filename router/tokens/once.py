"""Tokenize once: send the engine the ids that we computed instead of the text.

Only for completions, where a prompt of ids is part of the API and the reply has the same shape. A
chat's reply depends on more than its ids (tool and reasoning parsers), so chats go as they came.
"""

from __future__ import annotations

from array import array
from typing import Final

import msgspec
from msgspec import Raw

from router.blocks.hashing import TYPE_CODE
from router.openai.fields import starts_with
from router.openai.generation import Generation, Kind

NEEDS_TEXT: Final = ("echo", "suffix", "prompt_embeds", "truncate_prompt_tokens", "use_beam_search")
"""Fields with which the engine would answer in another way if it got ids."""

_NOT_ASKED: Final = (b"null", b"false")
_decode = msgspec.json.Decoder(dict[str, Raw]).decode


def body_with_ids(generation: Generation, tokens: bytes) -> bytes:
    """The body with `prompt` as ids; the client's own bytes where that could change the reply.

    Every other field keeps its JSON text; white space between fields goes.
    """
    if generation.kind is not Kind.COMPLETION or not tokens:
        return generation.body
    if not starts_with(generation.fields.prompt, b'"'):
        return generation.body
    body = _decode(generation.body)
    if any(bytes(body.get(name, Raw(b"null"))) not in _NOT_ASKED for name in NEEDS_TEXT):
        return generation.body
    ids = msgspec.json.encode(array(TYPE_CODE, tokens).tolist())
    return msgspec.json.encode({**body, "prompt": Raw(ids)})
