"""mistral-common's layout of stretches of a chat (see `mistral_stretches`), in literal pieces.

The library lays out the prompt; its texts are only noted on the way and become pieces, so that
those known from before come from the memo and long ones are encoded in a thread.
"""

from __future__ import annotations

import importlib
import re
import secrets
import threading
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from router.tokens.encoder import literal
from router.tokens.mistral_stretches import ASK, LEADS, closes, split_at
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.tekken import TekkenEncoder
from router.tokens.words import PARAGRAPH

FIRST_IN_STRETCHES: Final = 3
"""Tokenizer version from which no layout depends on whether a user comes later."""

FIRST_WITH_SYSTEMS: Final = 7
"""Version from which systems stay where they are; before, the last user gets them all."""

FIRST_WITH_TOOLS_FIRST: Final = 13
"""Version from which the first user gets the tools; before, the last one."""

FIRST_WITH_SETTINGS: Final = 15
"""Version from which the engine hands `reasoning_effort` on, and the first user gets settings."""

Messages = Sequence[dict[str, Any]]


class Settings(Struct, gc=False):
    """What the library is told beside the messages."""

    tools: list[dict[str, Any]] | None
    effort: Any = None
    continues: bool = False


class Library:
    """One model's; takes the place of its vocabulary."""

    def __init__(self, encoder: TekkenEncoder) -> None:
        self._encoder = encoder
        self._library = encoder.library
        instruct = self._library.instruct_tokenizer
        self.version = int(str(instruct.tokenizer.version.value).partition("v")[2])
        ends = (instruct.tokenizer.eos_id, getattr(instruct, "END_TOOL_RESULTS", None))
        self._closers = frozenset(token for token in ends if token is not None)
        self._notes = _Notes(instruct.tokenizer)
        instruct.tokenizer = self._notes
        requests = importlib.import_module("mistral_common.protocol.instruct.request")
        self._request = requests.ChatCompletionRequest.from_openai
        self.efforts = frozenset(effort.value for effort in requests.ReasoningEffort)
        # nobody can write it into a prompt
        self._mark = f"\ue000{secrets.token_hex(8)}"
        self._marks = re.compile(f"{self._mark}([0-9]+)\ue000")
        self._names: dict[int, str] = {}

    def lay_out(
        self, stretches: Sequence[Messages], settings: Settings, systems: Messages | None = None
    ) -> list[str]:
        """Each one's pieces, joined. Any thread may run this.

        `systems`: those said before these stretches; None if nothing was. Raises TokenizeFailed.
        """
        counts = [closes([one.get("role") for one in some]) for some in stretches[:-1]]
        lead: list[dict[str, Any]] = []
        tools = settings.tools
        if systems is not None:
            lead = LEADS[stretches[0][0]["role"]]
            counts.insert(0, closes([one["role"] for one in lead]))
            if self.version < FIRST_WITH_SYSTEMS:
                lead = [*systems, *lead]
            if self.version >= FIRST_WITH_TOOLS_FIRST:
                tools = None  # they were looked at with the first
        more = {}
        if self.version >= FIRST_WITH_SETTINGS:
            more["reasoning_effort"] = settings.effort
        with self._notes as texts:
            try:
                request = self._request(
                    messages=[*lead, *(one for some in stretches for one in some)],
                    tools=tools,
                    continue_final_message=settings.continues,
                    **more,
                )
                tokens: list[int] = self._library.encode_chat_completion(request).tokens
                made = split_at(tokens, self._closers, counts)
                return [self._pieces(one, texts) for one in made[1 if lead else 0 :]]
            except Exception as exc:  # whatever it is, the engine answers 400
                raise TokenizeFailed(Reason.INVALID) from exc

    def lay_out_marks(
        self, said: Messages, settings: Settings, systems: Messages | None, *, is_last: bool
    ) -> str:
        """One stretch with a mark in the place of each text, as `fill` takes it; those of systems
        come first. `is_last`: no user comes behind it."""
        before = None if systems is None else list(map(self._marked, systems, range(len(systems))))
        at = len(systems or ())
        marked = list(map(self._marked, said, range(at, at + len(said))))
        return self.lay_out([marked, *([] if is_last else [[ASK]])], settings, before)[0]

    def fill(self, layout: str, texts: Sequence[str]) -> str:
        """A layout with texts in the places of its marks."""
        parts = self._marks.split(layout)
        parts[1::2] = [texts[int(number)] for number in parts[1::2]]
        for at in range(3, len(parts), 2):
            # systems stand before the last user's text, and come again with the next one's
            if parts[at - 1] == PARAGRAPH and self._encoder.begins_anew(
                parts[at - 2] + PARAGRAPH, parts[at]
            ):
                parts[at - 1] += literal("", "")
        return "".join(parts)

    def _marked(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        return {**message, "content": f"{self._mark}{number}\ue000"}

    def _pieces(self, tokens: Sequence[int], texts: Sequence[str]) -> str:
        """Of ids of special tokens; negative numbers stand for the texts between them."""
        made, special = [], ""
        for token in tokens:
            if token < 0:
                made.append(literal(special, texts[~token]))
                special = ""
                continue
            if special:
                made.append(literal(special, ""))
            special = self._name(token)
        if special:
            made.append(literal(special, ""))
        return "".join(made)

    def _name(self, token: int) -> str:
        """The library takes its time to spell one."""
        if token not in self._names:
            self._names[token] = self._encoder.token_text(token) or ""
        return self._names[token]


class _Notes(threading.local):
    """Stands in for the library's vocabulary: notes the texts instead of encoding them.

    Use it in a `with`, which gives the texts noted by this thread; text `n` is `~n` in the ids.
    """

    def __init__(self, tekken: Any) -> None:
        self._tekken = tekken
        self._texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tekken, name)

    def __enter__(self) -> list[str]:
        self._texts = []
        return self._texts

    def __exit__(self, *_: object) -> None:
        self._texts = []

    def encode(self, s: str, bos: bool, eos: bool) -> list[int]:
        if not s:
            ids = []
        else:
            ids = [~len(self._texts)]
            self._texts.append(s)
        before, after = [self._tekken.bos_id] * bos, [self._tekken.eos_id] * eos
        return [*before, *ids, *after]

    def decode(self, *_: object, **__: object) -> str:
        """The library spells every prompt for its log; nobody reads that here."""
        return ""
