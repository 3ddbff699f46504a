"""Chat messages as vLLM hands them to a chat template.

vLLM rebuilds every message before the template sees it: parts become one text, tool arguments
become objects, unknown keys vanish. Read from vllm/renderers/chat_utils.py and hf.py of 0.32.0;
what is not rebuilt alike gives other ids, so the odd rules here are the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

from router.tokens.protocol import Reason, TokenizeFailed

Message: TypeAlias = dict[str, Any]

TEXT_FIELD: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Part types that are text, and the field that holds it."""

PART_FIELDS: Final = frozenset(
    "audio_embeds audio_url closed data file image_embeds image_pil image_url input_audio name"
    " prompt_cache_breakpoint refusal text thinking type uuid video_embeds video_url".split()
)
"""Fields of a part that the engine knows; it hands all others on to the template."""

SKIPPED_IF_NULL: Final = frozenset({"text", "refusal"})
BILLING_HEADER: Final = "x-anthropic-billing-header"
"""A line that changes with every request of one client; the engine drops it from system texts."""


def conversation(messages: Sequence[Any], *, parts: bool) -> list[Message]:
    """Rebuild the messages. `parts`: the template iterates over content, so keep its parts."""
    if not messages:
        raise TokenizeFailed(Reason.INVALID)
    return [_message(message, parts=parts) for message in messages]


def without_developer(messages: list[Message]) -> list[Message]:
    """For templates that don't know the developer: make it system, and all systems one."""
    if "developer" not in map(itemgetter("role"), messages):
        return messages
    return _one_system([_as_system(message) for message in messages])


def tool_schemas(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Tools with the keys, and in the order of keys, that the engine's own model dumps."""
    return [_tool(tool) for tool in tools]


def _message(message: Any, *, parts: bool) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise TokenizeFailed(Reason.INVALID)
    role = message["role"]
    rebuilt: Message = {"role": role, "content": _content(message, role, parts=parts)}
    if role == "assistant":
        _add_assistant_fields(rebuilt, message)
    elif role == "tool":
        _add_tool_fields(rebuilt, message)
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            rebuilt[key] = message[key]
    if role == "developer":
        rebuilt["tools"] = message.get("tools")
    return rebuilt


def _content(message: Message, role: str, *, parts: bool) -> str | list[Message]:
    content = message.get("content")
    drop_billing = role == "system"
    if isinstance(content, str) and not (drop_billing and content.startswith(BILLING_HEADER)):
        return [{"type": "text", "text": content}] if parts else content  # nearly every message
    found = _content_parts(content, drop_billing=drop_billing)
    kept = [part for part in map(_part, found) if part is not None]
    return kept if parts else _join(kept)


def _content_parts(content: Any, *, drop_billing: bool) -> Iterable[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        raise TokenizeFailed(Reason.INVALID)
    return _without_billing_header(content) if drop_billing else content


def _without_billing_header(parts: Iterable[Any]) -> Iterable[Any]:
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        text = part if isinstance(part, str) else part.get("text") if is_text else None
        if not (isinstance(text, str) and text.startswith(BILLING_HEADER)):
            yield part
        elif rest := text.partition("\n")[2]:
            yield rest


def _part(part: Any) -> Message | None:
    """A part in the one form that templates get; None for a text that is null."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise TokenizeFailed(Reason.INVALID)
    kind = part.get("type")
    if part.get("uuid") is not None or not isinstance(kind, str):
        raise TokenizeFailed(Reason.MULTIMODAL)
    if kind == "tool_reference" and isinstance(part.get("name"), str):
        return {"type": kind, "name": part["name"]}
    if kind not in TEXT_FIELD:
        raise TokenizeFailed(Reason.MULTIMODAL)
    text = part.get(TEXT_FIELD[kind])
    if text is None and kind in SKIPPED_IF_NULL:
        return None
    if not isinstance(text, str):
        raise TokenizeFailed(Reason.INVALID)
    others = {key: value for key, value in part.items() if key not in PART_FIELDS}
    return {"type": "text", "text": text, **others}


def _join(parts: list[Message]) -> str:
    """One text; empty parts leave no line behind."""
    texts = (part["text"] if part["type"] == "text" else part["name"] for part in parts)
    return "\n".join(text for text in texts if text)


def _join_texts(parts: list[Message]) -> str:
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def _add_assistant_fields(rebuilt: Message, message: Message) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise TokenizeFailed(Reason.INVALID)
        if calls:  # an empty list would send templates down their tool path
            rebuilt["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning_content")
    if message.get("reasoning") is not None:
        reasoning = message["reasoning"]
    if reasoning is not None:
        rebuilt["reasoning"] = rebuilt["reasoning_content"] = reasoning


def _add_tool_fields(rebuilt: Message, message: Message) -> None:
    if "tool_call_id" in message:
        rebuilt["tool_call_id"] = message["tool_call_id"]
    content = rebuilt["content"]
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        rebuilt["content"] = _join_texts(content)


def _tool_call(call: Any) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise TokenizeFailed(Reason.INVALID)
    function = {**function, "arguments": _arguments(function.get("arguments"))}
    call = {**call, "function": _first(function, ("arguments", "name"))}
    return _first(call, ("id", "function", "type"))


def _first(fields: Message, names: Sequence[str]) -> Message:
    """The same fields, those named first: the order that the engine's validation leaves."""
    return {name: fields[name] for name in names if name in fields} | fields


def _arguments(arguments: Any) -> dict[str, Any]:
    """Templates want an object; what is none becomes an empty one, as the engine does it."""
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
        except RecursionError as exc:
            raise TokenizeFailed(Reason.INVALID) from exc
    return arguments if isinstance(arguments, dict) else {}


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise TokenizeFailed(Reason.INVALID)
    dumped = {key: function.get(key) for key in ("name", "description", "parameters")}
    deferred = tool.get("defer_loading")
    extras = {
        "strict": function.get("strict"),
        "defer_loading": function.get("defer_loading", deferred),
    }
    dumped |= {key: value for key, value in extras.items() if value is not None}
    outer = {"type": "function", "function": dumped}
    return outer if deferred is None else {**outer, "defer_loading": deferred}


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _one_system(messages: list[Message]) -> list[Message]:
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) == 1 and messages[0] is systems[0]:
        return messages
    texts = [
        content if isinstance(content := message["content"], str) else _join_texts(content)
        for message in systems
    ]
    merged: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in messages if message["role"] != "system")]
