"""Prompts that came before, word for word: their ids, without rendering or encoding anything.

Retries, samples of one prompt and evaluations repeat whole prompts; other traffic does not, so ids
are kept of what has come twice. A key is a hash of every field that ids can depend on.
"""

from __future__ import annotations

import random
from operator import attrgetter
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from router.blocks.remembered import RememberedIds
from router.openai.fields import ABSENT, GenerationFields
from router.openai.generation import Generation, Kind
from router.tokens.memo import Memo

IRRELEVANT: Final = frozenset(
    "model stream stream_options cache_salt session_id prompt_cache_key previous_response_id store"
    " n max_tokens max_completion_tokens echo response_format vllm_xargs".split()
)
"""Fields that no tokenizer reads. All others are part of the key, whoever adds them."""

MAX_BODY_BYTES: Final = 64 * 1024
"""Of longer ones the other memos have the most, and one copy of all their ids would be large."""

MAX_ONCE: Final = 8192

_KINDS: Final = {kind: 1000 * number for number, kind in enumerate(Kind)}

_fields = [one.name for one in msgspec.structs.fields(GenerationFields)]
_read = attrgetter(*[name for name in _fields if name not in IRRELEVANT])


class WholePrompts:
    """One tokenizer's; bounded in bytes, what was used longest ago goes first.

    For tokenizers whose ids follow from the prompt alone: no clock may have a say.
    """

    def __init__(self, max_bytes: int) -> None:
        self.memo: Memo[bytes] = Memo(max_bytes)
        self._once: dict[bytes, None] = {}
        self._last: tuple[Generation, bytes] | None = None
        # 128 bits under a seed that nobody knows: equal keys are equal prompts
        self._seed = random.SystemRandom().getrandbits(63)

    def recall(self, generation: Generation) -> bytes | None:
        """Its ids, if it came before."""
        if len(generation.body) > MAX_BODY_BYTES:
            return None
        return self.memo.get(self._key(generation))

    def note(self, generation: Generation, ids: bytes) -> None:
        """It came, and these are its ids."""
        if len(generation.body) > MAX_BODY_BYTES:
            return
        key = self._key(generation)
        self._last = None
        if key in self._once:
            del self._once[key]
            self.memo.put(key, RememberedIds(ids))
            return
        if len(self._once) >= MAX_ONCE:
            self._once.clear()
        self._once[key] = None

    def _key(self, generation: Generation) -> bytes:
        """Asked for before and behind the work on a prompt, mostly with no other between."""
        last = self._last
        if last is None or last[0] is not generation:
            last = self._last = generation, self._digest(generation)
        return last[1]

    def _digest(self, generation: Generation) -> bytes:
        # each kind and each field hashes under a seed of its own
        seed, digest = self._seed + _KINDS[generation.kind], xxh3_128_digest
        given = enumerate(_read(generation.fields), seed)
        return b"".join([digest(raw, place) for place, raw in given if raw is not ABSENT])
