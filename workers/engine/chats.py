"""Messages and tools as vLLM hands them to a chat template: rebuilt, so that unknown keys vanish.

The ids of a prompt depend on it, and a router that renders chats itself must get the same ones.
ValueError or TypeError for what is no chat.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Message = dict[str, Any]

_TEXT_FIELDS: Final = {"text": "text", "input_text": "text", "output_text": "text"} | {
    "refusal": "refusal",
    "thinking": "thinking",
}
_CALL_ORDER: Final = ("id", "function", "type")
_FUNCTION_ORDER: Final = ("arguments", "name")


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Text parts joined, a missing content empty, arguments of calls as objects."""
    if not messages:
        raise ValueError("a chat needs at least one message")
    return [_message(message) for message in messages]


def plain_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Message] | None:
    """Tools with the keys, in the order, that vLLM's own model of them dumps."""
    return [_tool(tool) for tool in tools] if tools else None


def _message(message: Mapping[str, Any]) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise TypeError("a message needs a role")
    plain: Message = {"role": role, "content": _text(message.get("content"))}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            plain["tool_calls"] = [_call(call) for call in calls]
        reasoning = message.get("reasoning") or message.get("reasoning_content")
        if reasoning is not None:
            plain["reasoning"] = plain["reasoning_content"] = reasoning
    if role == "tool" and "tool_call_id" in message:
        plain["tool_call_id"] = message["tool_call_id"]
    if role == "developer":
        plain["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        plain["name"] = message["name"]
    return plain


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError("a message's content must be text or a list of parts")
    return "\n".join(text for text in map(_part_text, content) if text)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise TypeError(f"a part of a message must be an object, not {part!r}")
    field = _TEXT_FIELDS.get(part.get("type", ""))
    if field is None:
        raise ValueError(f"a {part.get('type')!r} part: this model reads text only")
    text = part.get(field) or ""
    if not isinstance(text, str):
        raise TypeError("the text of a part must be a string")
    return text


def _call(call: Mapping[str, Any]) -> Message:
    function = dict(call["function"])
    function["arguments"] = _arguments(function.get("arguments"))
    return _ordered({**call, "function": _ordered(function, _FUNCTION_ORDER)}, _CALL_ORDER)


def _arguments(given: Any) -> Message:
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}


def _tool(tool: Mapping[str, Any]) -> Message:
    function = tool["function"]
    if not isinstance(function["name"], str):
        raise TypeError("a tool needs a name")
    dumped = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        dumped["strict"] = function["strict"]
    return {"type": "function", "function": dumped}


def _ordered(fields: Message, first: Sequence[str]) -> Message:
    return {name: fields[name] for name in first if name in fields} | fields
