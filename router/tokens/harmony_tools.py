"""Tool schemas as the TypeScript in which harmony shows them to gpt-oss.

After `json_schema_to_typescript` of oss-harmony. What is rare and shown oddly there (`oneOf`,
defaults that are no scalars, types that are no names) is refused: routed without a prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from router.tokens.protocol import Reason, TokenizeFailed

Schema = dict[str, Any]

SIMPLE: Final = {"number": "number", "integer": "number", "boolean": "boolean"}
MISSING: Final = object()
MAX_DEPTH: Final = 32


def tools_section(tools: Sequence[Any]) -> str:
    """All functions in their one namespace. Raises TokenizeFailed."""
    lines = ["# Tools\n", "## functions\n", "namespace functions {\n"]
    for tool in tools:
        lines += _declaration(tool)
    return "\n".join([*lines, "} // namespace functions"])


def _declaration(tool: Any) -> Iterator[str]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise TokenizeFailed(Reason.UNSUPPORTED)
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters")
    if not isinstance(name, str) or not isinstance(description, str):
        raise TokenizeFailed(Reason.INVALID)
    for line in _lines(description):
        yield f"// {line}"
    if parameters is None:
        yield f"type {name} = () => any;\n"
    else:
        yield f"type {name} = (_: {_type(parameters, '', MAX_DEPTH)}) => any;\n"


def _lines(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if text.endswith("\n") or not text else lines


def _type(schema: Any, indent: str, depth: int) -> str:
    if not isinstance(schema, dict) or "oneOf" in schema or not depth:
        raise TokenizeFailed(Reason.UNSUPPORTED)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(kind)
    if kind == "object":
        return _object(schema, indent, depth)
    if kind == "array":
        inner = schema.get("items", MISSING)
        return "Array<any>" if inner is MISSING else f"{_type(inner, indent, depth - 1)}[]"
    if kind == "string":
        return " | ".join(f'"{value}"' for value in _enum(schema)) or "string"
    return SIMPLE.get(kind, "any") if isinstance(kind, str) else "any"


def _union(kinds: list[Any]) -> str:
    if not kinds or not all(isinstance(kind, str) for kind in kinds):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    return " | ".join("number" if kind == "integer" else kind for kind in kinds)


def _enum(schema: Schema) -> list[str]:
    values = schema.get("enum") or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    return values


def _object(schema: Schema, indent: str, depth: int) -> str:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    about = schema.get("description")
    lines = [f"{indent}// {about}\n"] if isinstance(about, str) else []
    lines.append("{\n")
    for name, value in properties.items():
        if not isinstance(value, dict):
            raise TokenizeFailed(Reason.UNSUPPORTED)
        lines += _comments(value, indent)
        mark = "" if name in required else "?"
        shown = _nullable(_type(value, f"{indent}    ", depth - 1), value)
        lines.append(f"{indent}{name}{mark}: {shown},{_default(value)}\n")
    return "".join([*lines, indent, "}"])


def _nullable(shown: str, value: Schema) -> str:
    return f"{shown} | null" if value.get("nullable") is True and "null" not in shown else shown


def _comments(value: Schema, indent: str) -> Iterator[str]:
    if isinstance(value.get("title"), str):
        yield f"{indent}// {value['title']}\n{indent}//\n"
    if isinstance(value.get("description"), str):
        yield f"{indent}// {value['description']}\n"
    examples = value.get("examples")
    if isinstance(examples, list) and examples:
        yield f"{indent}// Examples:\n"
        for example in examples:
            if isinstance(example, str):
                yield f'{indent}// - "{example}"\n'


def _default(value: Schema) -> str:
    if "default" not in value:
        return ""
    default = value["default"]
    if isinstance(default, str):
        shown = default if value.get("enum") else f'"{default}"'
    elif default is None or isinstance(default, bool | int):
        shown = json.dumps(default)
    else:
        raise TokenizeFailed(Reason.UNSUPPORTED)
    return f" // default: {shown}"
