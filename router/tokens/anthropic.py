"""Bodies of /v1/messages as vLLM turns them into a chat, before its chat template sees them.

Read from vllm/entrypoints/anthropic/serving.py of 0.32.0. What depends on probing the template
there (system messages inside the conversation, thinking switched off) has no exact answer here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from router.tokens.conversation import BILLING_HEADER, Message
from router.tokens.protocol import Reason, TokenizeFailed

IGNORED_BLOCKS: Final = frozenset({"redacted_thinking", "tool_reference"})


def chat_messages(system: Any, messages: list[Any]) -> list[Message]:
    """The conversation in the form of the chat API. Raises TokenizeFailed."""
    found: list[Message] = []
    if text := _system_text(system):
        found.append({"role": "system", "content": text})
    for message in messages:
        found += _converted(message)
    return found


def chat_tools(tools: list[Any]) -> list[dict[str, Any]]:
    """Tools in the form of the chat API; a schema without a type is an object's."""
    return [_tool(tool) for tool in tools]


def reasoning_effort(thinking: Any, output_config: Any) -> str | None:
    """What the chat's `reasoning_effort` becomes."""
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        raise TokenizeFailed(Reason.UNSUPPORTED)
    effort = output_config.get("effort") if isinstance(output_config, dict) else None
    return effort if isinstance(effort, str) else None


def _system_text(system: Any) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [_text(block) for block in _blocks(system) if block.get("type") == "text"]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _converted(message: Any) -> Iterator[Message]:
    if not isinstance(message, dict):
        raise TokenizeFailed(Reason.INVALID)
    role, content = message.get("role"), message.get("content")
    if role == "system":
        raise TokenizeFailed(Reason.UNSUPPORTED)
    if role not in ("user", "assistant"):
        raise TokenizeFailed(Reason.INVALID)
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    blocks = _blocks(content)
    if role == "user":
        yield from map(_tool_result, _of_type(blocks, "tool_result"))
    elif any(_of_type(blocks, "tool_result")):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    made = _from_blocks(role, blocks)
    if role == "assistant" or "content" in made or "tool_calls" in made:
        yield made


def _from_blocks(role: str, blocks: list[Message]) -> Message:
    made: Message = {"role": role}
    texts: list[Message] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            texts.append({"type": "text", "text": _text(block)})
        elif kind == "image":
            raise TokenizeFailed(Reason.MULTIMODAL)
        elif kind not in (*IGNORED_BLOCKS, "text", "thinking", "tool_use", "tool_result"):
            raise TokenizeFailed(Reason.UNSUPPORTED)
    thoughts = [block.get("thinking") for block in _of_type(blocks, "thinking")]
    if said := [thought for thought in thoughts if isinstance(thought, str)]:
        made["reasoning"] = "".join(said)
    if calls := [_tool_call(block) for block in _of_type(blocks, "tool_use")]:
        made["tool_calls"] = calls
    if texts:
        made["content"] = texts[0]["text"] if len(texts) == 1 else texts
    return made


def _tool_call(block: Message) -> Message:
    if not isinstance(block.get("id"), str) or not block["id"]:
        raise TokenizeFailed(Reason.UNSUPPORTED)  # the engine would make one up from the time
    arguments = json.dumps(block.get("input") or {})
    function = {"name": block.get("name") or "", "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}


def _tool_result(block: Message) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        kinds = {item.get("type") for item in _blocks(content)}
        if kinds - {"text"}:
            raise TokenizeFailed(Reason.MULTIMODAL if "image" in kinds else Reason.UNSUPPORTED)
        content = "\n".join(map(_text, content))
    elif not isinstance(content, str):
        content = ""
    return {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": content}


def _tool(tool: Any) -> dict[str, Any]:
    schema = tool.get("input_schema") if isinstance(tool, dict) else None
    if not isinstance(schema, dict) or tool.get("defer_loading") is not None:
        raise TokenizeFailed(Reason.UNSUPPORTED)
    function = {"name": tool.get("name"), "description": tool.get("description")}
    function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _blocks(content: Any) -> list[Message]:
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise TokenizeFailed(Reason.INVALID)
    return content


def _of_type(blocks: list[Message], kind: str) -> Iterator[Message]:
    return (block for block in blocks if block.get("type") == kind)


def _text(block: Message) -> str:
    text = block.get("text") or ""
    if not isinstance(text, str):
        raise TokenizeFailed(Reason.INVALID)
    return text
