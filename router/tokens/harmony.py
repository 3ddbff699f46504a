"""Chats of gpt-oss in the harmony format, as vLLM builds them; no template is asked.

Follows vllm/entrypoints/openai/parser/harmony_utils.py of 0.32.0 and what its oss-harmony 0.0.11
makes of that. Nothing in a message's text is special here, so the prompt is handed on as pieces
whose text is literal (`encoder.literal`), never as one string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from router.openai.fields import GenerationFields, is_given, scalar
from router.openai.generation import Generation, Kind
from router.tokens.encoder import Encoder, literal
from router.tokens.harmony_tools import tools_section
from router.tokens.prompt import ChatPrompt
from router.tokens.protocol import Reason, TokenizeFailed

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


def harmony_pieces(
    messages: Sequence[Any], tools: Sequence[Any] | None, effort: str | None, date: str
) -> list[str]:
    """The prompt in pieces. `date`: the engine's day, YYYY-MM-DD. Raises TokenizeFailed."""
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise TokenizeFailed(Reason.INVALID)
    if effort not in (None, *EFFORTS):
        raise TokenizeFailed(Reason.INVALID)
    instructions, rest = None, list(messages)
    if messages[0].get("role") in ("system", "developer"):
        instructions, rest = _flat(messages[0].get("content")), rest[1:]
    turns = [
        _Turn("system", (_system_text(effort or DEFAULT_EFFORT, date, has_tools=bool(tools)),)),
        *_developer(instructions, tools),
    ]
    names = dict(_call_names(rest))
    for message in rest:
        turns += _turns(message, names)
    pieces = [piece for turn in _without_old_analysis(turns) for piece in turn.pieces()]
    return [*pieces, literal("<|start|>", "assistant")]


class HarmonyFormat:
    """Chats in this format, dated by `clock` as the engine dates them."""

    def __init__(self, encoder: Encoder, clock: Callable[[], datetime]) -> None:
        encoder.learn_literals()
        self._clock = clock

    def pieces(self, generation: Generation, prompt: ChatPrompt) -> list[str]:
        """Raises TokenizeFailed, also for fields whose effect is not followed here."""
        fields = generation.fields
        if generation.kind is not Kind.CHAT or "reasoning_effort" in _keywords(fields):
            raise TokenizeFailed(Reason.UNSUPPORTED)
        if is_given(fields.truncate_prompt_tokens) or is_given(fields.chat_template):
            raise TokenizeFailed(Reason.UNSUPPORTED)
        effort = prompt.variables.get("reasoning_effort")
        date = self._clock().strftime("%Y-%m-%d")
        return harmony_pieces(prompt.messages, prompt.tools, effort, date)


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


def _call_names(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, str]]:
    for message in messages:
        for call in _calls(message):
            yield call.get("id"), call["function"]["name"]


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


def _turns(message: dict[str, Any], names: dict[Any, str]) -> Iterator[_Turn]:
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        yield from _assistant(message)
    elif role == "tool":
        name = names.get(message.get("tool_call_id", ""), "")
        text = _flat(content) or ""
        yield _Turn(f"functions.{name}", (text,), "commentary", " to=assistant")
    elif role in ("system", "developer"):
        text_or_none = _flat(content)
        if text_or_none is not None:
            yield _Turn("developer", (f"# Instructions\n\n{text_or_none}",))
    elif role == "user":
        yield _Turn("user", _texts(content) or ("",))
    else:
        raise TokenizeFailed(Reason.INVALID)


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


def _without_old_analysis(turns: list[_Turn]) -> list[_Turn]:
    """Reasoning goes once an answer has followed it."""
    finals = [at for at, turn in enumerate(turns) if turn.channel == "final"]
    last = finals[-1] if finals else 0
    return [turn for at, turn in enumerate(turns) if at >= last or turn.channel != "analysis"]
