"""Chats of gpt-oss in the harmony format, as vLLM builds them; no template is asked.

Follows vllm/entrypoints/openai/parser/harmony_utils.py of 0.32.0 and what its oss-harmony 0.0.11
makes of that. Nothing in a message's text is special here, so the prompt is handed on as pieces
whose text is literal (`encoder.literal`), never as one string. What a message became is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from msgspec import Raw, Struct

from router.openai.fields import GenerationFields, is_given, scalar
from router.openai.generation import Generation, Kind
from router.tokens.encoder import Encoder, literal
from router.tokens.harmony_tools import tools_section
from router.tokens.passages import Chat, Key, Part, Passage, Passages
from router.tokens.prompt import ChatPrompt, decode_message
from router.tokens.protocol import Reason, TokenizeFailed
from router.tokens.told import Told

EFFORTS: Final = ("low", "medium", "high")
DEFAULT_EFFORT: Final = "medium"
FUNCTION_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")
"""Names whose ids don't depend on what is written beside them; others are not rendered here."""

IDENTITY: Final = (
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06"
)
CHANNELS: Final = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
CALLS: Final = "\nCalls to these tools must go to the commentary channel: 'functions'."


_is_simple = attrgetter("is_simple")


@dataclass(frozen=True, slots=True)
class _Turn:
    """One harmony message. `header`: what stands before its channel; `after`: behind that."""

    header: str
    texts: tuple[str, ...]
    channel: str = ""
    after: str = ""
    end: str = "<|end|>"

    def pieces(self) -> Iterator[str]:
        yield literal("<|start|>", self.header)
        if self.channel:
            yield literal("<|channel|>", self.channel + self.after)
        yield literal("<|message|>", self.texts[0])
        for text in self.texts[1:]:  # each part is encoded on its own
            yield literal("", text)
        yield literal(self.end, "")


class _Said(Struct, gc=False):
    """A message, and the turns that it becomes; of a result they are known once its name is."""

    turns: tuple[_Turn, ...] = ()
    instructions: str | None = None
    """Of a system or developer."""
    is_system: bool = False
    result: str | None = None
    answers: Any = ""
    """The id of the call whose result it is."""
    calls: tuple[tuple[Any, str], ...] = ()
    thinks: bool = False
    is_final: bool = False
    is_simple: bool = True
    """It neither thinks nor is a result."""

    def pieces(self, variant: bool | str) -> Iterator[str]:
        """`variant`: whether its reasoning stays; of a result the function's name."""
        turns = self.turns
        if self.result is not None:
            turns = (_Turn(f"functions.{variant}", (self.result,), "commentary", " to=assistant"),)
        for turn in turns:
            if variant is not False or turn.channel != "analysis":
                yield from turn.pieces()


class HarmonyFormat:
    """Chats in this format, dated by `clock` as the engine dates them.

    `memo_bytes`: bound of what is remembered of messages, and of what was made of them.
    """

    def __init__(
        self, encoder: Encoder, clock: Callable[[], datetime], memo_bytes: int = 0
    ) -> None:
        encoder.learn_literals()
        self.told = Told(memo_bytes // 2, _read)
        self.passages = Passages(memo_bytes // 2)
        self._clock = clock

    def parts(
        self, generation: Generation, prompt: ChatPrompt, *, afresh: bool = False
    ) -> list[Part]:
        """See `ChatFormat`. Fields whose effect is not followed here are refused too."""
        effort = _effort(generation, prompt)
        told, passages = self.told, self.passages
        if afresh:
            told, passages = Told(0, _read), Passages(0)
        heard = told.hear(prompt.as_json())
        if not heard.messages:
            raise TokenizeFailed(Reason.INVALID)
        said, numbers = heard.messages, heard.numbers
        top, number = (said[0], numbers[0]) if said[0].is_system else (_Said(), None)
        if number is not None:
            said, numbers = said[1:], numbers[1:]
        date, tools = self._clock().strftime("%Y-%m-%d"), told.digest(generation.fields.tools)
        row: Key = (effort, date, tools, number)
        [head] = passages.recall_all([row])
        if head is None:
            head = Passage("".join(_head(effort, date, top.instructions, prompt.tools)))
            passages.remember_one(row, head)
        known = passages.recall(0, (), [numbers, _variants(said)], Chat(heard.before, heard.now))
        parts: list[Part] = [head, *known.passages]
        for one, row in zip(said[known.turns :], known.rest, strict=True):
            passage = Passage("".join(one.pieces(row[1])))
            passages.remember(0, (), row, passage)
            parts.append(passage)
        return [*parts, literal("<|start|>", "assistant")]


def _effort(generation: Generation, prompt: ChatPrompt) -> str | None:
    """What the request asks for; also looks at fields whose effect is not followed here."""
    fields = generation.fields
    if generation.kind is not Kind.CHAT or "reasoning_effort" in _keywords(fields):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    if is_given(fields.truncate_prompt_tokens) or is_given(fields.chat_template):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    effort: str | None = prompt.variables.get("reasoning_effort")
    if effort not in (None, *EFFORTS):
        raise TokenizeFailed(Reason.INVALID)
    return effort


def _variants(found: Sequence[_Said]) -> list[bool | str]:
    """A message's layout depends on itself and on this: reasoning goes once an answer has followed
    it, and a result bears the name that the last call with its id gave."""
    if all(map(_is_simple, found)):
        return [False] * len(found)
    names = {call: name for said in found if said.calls for call, name in said.calls}
    finals = [at for at, said in enumerate(found) if said.is_final]
    last = finals[-1] if finals else -1
    return [
        said.thinks and at > last if said.result is None else names.get(said.answers, "")
        for at, said in enumerate(found)
    ]


def _head(
    effort: str | None, date: str, instructions: str | None, tools: Sequence[Any] | None
) -> Iterator[str]:
    text = _system_text(effort or DEFAULT_EFFORT, date, has_tools=bool(tools))
    yield from _Turn("system", (text,)).pieces()
    for turn in _developer(instructions, tools):
        yield from turn.pieces()


def _keywords(fields: GenerationFields) -> dict[str, Any]:
    found = scalar(fields.chat_template_kwargs)
    return found if isinstance(found, dict) else {}


def _system_text(effort: str, date: str, *, has_tools: bool) -> str:
    top = f"{IDENTITY}\nCurrent date: {date}"
    return f"{top}\n\nReasoning: {effort}\n\n{CHANNELS}{CALLS if has_tools else ''}"


def _developer(instructions: str | None, tools: Sequence[Any] | None) -> Iterator[_Turn]:
    if not instructions and not tools:
        return
    sections = [] if instructions is None else ["# Instructions", instructions]
    if tools:
        sections.append(tools_section(tools))
    yield _Turn("developer", ("\n\n".join(sections),))


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Tool calls of a shape that is rendered here: named functions with arguments as text."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise TokenizeFailed(Reason.INVALID)
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise TokenizeFailed(Reason.INVALID)
        if not isinstance(function.get("arguments", ""), str):
            raise TokenizeFailed(Reason.UNSUPPORTED)
        if not FUNCTION_NAME.fullmatch(function["name"]):
            raise TokenizeFailed(Reason.UNSUPPORTED)
    return calls


def _read(raw: Raw) -> _Said:
    message = decode_message(raw)
    if not isinstance(message, dict):
        raise TokenizeFailed(Reason.INVALID)
    role, content = message.get("role"), message.get("content")
    calls = tuple([(_id(call.get("id")), call["function"]["name"]) for call in _calls(message)])
    if role == "assistant":
        turns = tuple(_assistant(message))
        channels = [turn.channel for turn in turns]
        thinks, is_final = "analysis" in channels, "final" in channels
        return _Said(turns, calls=calls, thinks=thinks, is_final=is_final, is_simple=not thinks)
    if role == "tool":
        answers = _id(message.get("tool_call_id", ""))
        return _Said(result=_flat(content) or "", answers=answers, calls=calls, is_simple=False)
    if role in ("system", "developer"):
        text = _flat(content)
        turns = () if text is None else (_Turn("developer", (f"# Instructions\n\n{text}",)),)
        return _Said(turns, text, is_system=True, calls=calls)
    if role == "user":
        return _Said((_Turn("user", _texts(content) or ("",)),), calls=calls)
    raise TokenizeFailed(Reason.INVALID)


def _id(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise TokenizeFailed(Reason.INVALID)
    return value


def _assistant(message: dict[str, Any]) -> Iterator[_Turn]:
    calls, reasoning = _calls(message), message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise TokenizeFailed(Reason.INVALID)
    thought = [_Turn("assistant", (reasoning,), "analysis")] if reasoning else []
    if not calls:
        yield from thought
        texts = _texts(message.get("content"))
        if texts and texts[0]:
            yield _Turn("assistant", texts, "final")
        return
    if said := _flat(message.get("content")):
        yield _Turn("assistant", (said,), "commentary")
    yield from thought
    for call in calls:
        function = call["function"]
        header = f"assistant to=functions.{function['name']}"
        arguments = function.get("arguments", "")
        yield _Turn(header, (arguments,), "commentary", " json", "<|call|>")


def _texts(content: Any) -> tuple[str, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list):
        raise TokenizeFailed(Reason.INVALID)
    return tuple(map(_part_text, content))


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    if part.get("type") != "text":
        raise TokenizeFailed(Reason.MULTIMODAL)
    text = part.get("text")
    if not isinstance(text, str):
        raise TokenizeFailed(Reason.INVALID)
    return text


def _flat(content: Any) -> str | None:
    """Parts in a row, with nothing between them; None where there is no text at all."""
    texts = _texts(content)
    return "".join(texts) if texts else None
