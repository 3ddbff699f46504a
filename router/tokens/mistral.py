"""Chats of Mistral's models as vLLM has them made: by mistral-common, from the model's tekken.json.

Follows vllm/tokenizers/mistral.py and renderers/online_renderer.py of 0.32.0. A conversation is
cut into stretches; those that are known are not laid out again, and plain texts take the places
of those that the library saw.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec import Raw, Struct

from router.openai.fields import is_given, scalar
from router.openai.generation import Generation, Kind
from router.tokens.conversation import TEXT_FIELD, tool_schemas
from router.tokens.mistral_library import (
    FIRST_IN_STRETCHES,
    FIRST_WITH_SYSTEMS,
    FIRST_WITH_TOOLS_FIRST,
    Library,
    Settings,
)
from router.tokens.mistral_stretches import SYSTEMS, USER, Said, cuts_of
from router.tokens.passages import Chat, Key, Part, Passage, Passages
from router.tokens.prompt import ChatPrompt, decode_message
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.tekken import TekkenEncoder
from router.tokens.told import Heard, Told

CALL_ID_CHARS: Final = 9
"""The engine keeps so many characters of a call's id, the last ones."""

_is_plain = attrgetter("is_plain")


class _Stretch(NamedTuple):
    said: Sequence[Said]
    has_last_user: bool


class _Asked(Struct, gc=False):
    """A chat while it is laid out.

    `cuts`: where its stretches begin, but the first. `last_user`: where that is.
    `first` and `last`: what is written into the first and into the last user's message: tools,
    settings, numbers of systems. `systems`: places of the latter.
    """

    heard: Heard[Said]
    cuts: Sequence[int]
    settings: Settings
    first: Key = ()
    last: Key = ()
    systems: Sequence[int] = ()

    @property
    def size(self) -> int:
        """How many stretches there are."""
        return len(self.cuts) + 1

    @property
    def last_user(self) -> int:
        """The number of the stretch that has it; the only one's, if there is none."""
        said = self.heard.messages
        users = (at for at in range(len(said) - 1, -1, -1) if said[at].role == USER)
        return bisect_right(self.cuts, next(users, 0))

    def stretch(self, at: int) -> _Stretch:
        start = self.cuts[at - 1] if at else 0
        end = self.cuts[at] if at < len(self.cuts) else None
        return _Stretch(self.heard.messages[start:end], at == self.last_user)

    def before(self, at: int) -> list[Said] | None:
        """What systems said before a stretch; None if it is the first one."""
        if not at:
            return None
        said = self.heard.messages
        return [said[place] for place in self.systems if place < self.cuts[at - 1]]


class MistralFormat:
    """Chats in the format of a tekken.json's version. `variables`: the engine's own defaults.

    `memo_bytes`: bound of what is remembered of messages, and of what was made of them.
    """

    def __init__(
        self, encoder: TekkenEncoder, variables: Mapping[str, Any], memo_bytes: int
    ) -> None:
        self.told = Told(memo_bytes // 2, _read)
        self.passages = Passages(memo_bytes // 2)
        self._library = Library(encoder)
        self._variables = variables

    def parts(
        self, generation: Generation, prompt: ChatPrompt, *, afresh: bool = False
    ) -> list[Part]:
        """See `ChatFormat`."""
        if generation.kind is not Kind.CHAT:
            raise TokenizeFailed(Reason.UNSUPPORTED)
        self._refuse_what_the_engine_refuses(generation)
        told = Told(0, _read) if afresh else self.told
        heard = told.hear(prompt.as_json())
        if not heard.messages:
            raise TokenizeFailed(Reason.INVALID)
        _refuse_what_ends_wrong(prompt, heard.messages[-1])
        asked = self._asked(heard, prompt, told.digest(generation.fields.tools))
        if afresh:
            return [*self._lay_out(asked, 0)]
        rows = self._rows(asked)
        known = self.passages.recall(0, (), [rows], Chat(heard.before, heard.now))
        fresh = self._fill_or_lay_out(asked, known.turns)
        for row, passage in zip(rows[known.turns :], fresh, strict=True):
            self.passages.remember_one(row, passage)
        return [*known.passages, *fresh]

    def _refuse_what_the_engine_refuses(self, generation: Generation) -> None:
        fields = generation.fields
        if is_given(fields.chat_template) or is_given(fields.chat_template_kwargs):
            raise TokenizeFailed(Reason.INVALID)
        effort = scalar(fields.reasoning_effort)
        if is_given(fields.reasoning_effort) and effort not in self._library.efforts:
            raise TokenizeFailed(Reason.INVALID)

    def _asked(self, heard: Heard[Said], prompt: ChatPrompt, tools: bytes) -> _Asked:
        version = self._library.version
        effort = {**self._variables, **prompt.variables}.get("reasoning_effort")
        schemas = None if prompt.tools is None else tool_schemas(prompt.tools)
        settings = Settings(schemas, effort, prompt.continue_final_message)
        cuts = self._cuts(heard) if version >= FIRST_IN_STRETCHES else ()
        if version >= FIRST_WITH_TOOLS_FIRST:
            return _Asked(heard, cuts, settings, first=(tools, repr(effort)))
        if version >= FIRST_WITH_SYSTEMS:
            return _Asked(heard, cuts, settings, last=(tools,))
        systems = [at for at, one in enumerate(heard.messages) if one.role in SYSTEMS]
        last = (tools, *[heard.numbers[at] for at in systems])
        return _Asked(heard, cuts, settings, last=last, systems=systems)

    def _cuts(self, heard: Heard[Said]) -> Sequence[int]:
        """A chat that goes on is cut where it was."""
        chat = Chat(heard.before, heard.now)
        cuts = cuts_of(heard.messages, self.passages.places(chat))
        self.passages.note_places(chat, cuts)
        return cuts

    def _rows(self, asked: _Asked) -> list[Key]:
        """All that each stretch's layout can depend on."""
        numbers = tuple(asked.heard.numbers)
        bounds = pairwise([0, *asked.cuts, len(numbers)])
        rows: list[Key] = [numbers[start:end] for start, end in bounds]
        rows[0] = ("first", asked.first, rows[0])
        rows[asked.last_user] = ("last", asked.last, rows[asked.last_user])
        rows[-1] = ("end", asked.settings.continues, rows[-1])
        return rows

    def _fill_or_lay_out(self, asked: _Asked, start: int) -> list[Passage]:
        """The stretches from `start` on."""
        made: list[Passage] = []
        for at in range(start, asked.size):
            filled = self._fill(asked, at)
            if filled is None:
                return made + self._lay_out(asked, at)
            made.append(filled)
        return made

    def _fill(self, asked: _Asked, at: int) -> Passage | None:
        """A stretch of plain texts, by how the library laid out marks in their places: it hands
        such texts on as they are. None if there are others."""
        stretch, systems = asked.stretch(at), asked.before(at)
        if systems and not stretch.has_last_user:
            systems = []  # they are not written here
        said = [*(systems or ()), *stretch.said]
        if not all(map(_is_plain, said)):
            return None
        is_end = at == asked.size - 1
        settings = Settings(asked.settings.tools, asked.settings.effort)
        settings.continues = is_end and asked.settings.continues
        key = (
            "shape",
            None if at else asked.first,
            asked.last[:1] if stretch.has_last_user else None,
            (is_end, settings.continues),
            len(systems or ()),
            tuple([one.role for one in stretch.said]),
        )
        [layout] = self.passages.recall_all([key])
        if layout is None:
            layout = Passage(
                self._library.lay_out_marks(
                    [one.message for one in stretch.said],
                    settings,
                    None if systems is None else [one.message for one in systems],
                    is_last=is_end or stretch.has_last_user,
                )
            )
            self.passages.remember_one(key, layout)
        texts = [one.message["content"] for one in said]
        return Passage(self._library.fill(layout.text, texts))

    def _lay_out(self, asked: _Asked, start: int) -> list[Passage]:
        """The stretches from `start` on."""
        systems = asked.before(start)
        made = self._library.lay_out(
            [[one.message for one in asked.stretch(at).said] for at in range(start, asked.size)],
            asked.settings,
            None if systems is None else [one.message for one in systems],
        )
        return list(map(Passage, made))


def _refuse_what_ends_wrong(prompt: ChatPrompt, last: Said) -> None:
    is_answer = last.role == "assistant"
    if prompt.continue_final_message:
        if prompt.add_generation_prompt or not is_answer:
            raise TokenizeFailed(Reason.INVALID)
    elif prompt.add_generation_prompt and is_answer:
        raise TokenizeFailed(Reason.INVALID)


def _read(raw: Raw) -> Said:
    message = decode_message(raw)
    if not isinstance(message, dict):
        raise TokenizeFailed(Reason.INVALID)
    _refuse_all_but_text(message)
    try:
        return Said.of(_as_validated(message))
    except Exception as exc:  # whatever it is, the engine answers 400
        raise TokenizeFailed(Reason.INVALID) from exc


def _refuse_all_but_text(message: dict[str, Any]) -> None:
    """Asked before the library sees a message: it would fetch what an image's address names."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise TokenizeFailed(Reason.INVALID)
        if kind not in TEXT_FIELD:
            raise TokenizeFailed(Reason.MULTIMODAL)
        if kind != "text" or set(part) != {"type", "text"}:
            raise TokenizeFailed(Reason.UNSUPPORTED)


def _as_validated(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the engine's validation leaves it: arguments as objects, ids of calls cut."""
    made = dict(message)
    if made.get("role") == "assistant":
        made["tool_calls"] = [_call(call) for call in made.get("tool_calls") or ()]
        if made.get("reasoning") is None and isinstance(made.get("reasoning_content"), str):
            made["reasoning"] = made["reasoning_content"]
        made.pop("reasoning_content", None)
    elif made.get("role") == "tool" and "tool_call_id" in made:
        made["tool_call_id"] = made["tool_call_id"][-CALL_ID_CHARS:]
    return made


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    function["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {**call, "id": call["id"][-CALL_ID_CHARS:], "function": function}
