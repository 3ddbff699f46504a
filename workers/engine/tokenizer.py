"""The local tokenizer and chat template of a model folder, used as vLLM uses Hugging Face's."""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Backend

from router.blocks import as_tokens

MODEL_FOLDER: Final = Path(__file__).with_name("model")


class TemplateFailed(ValueError):
    """The chat template refused these messages."""


class Tokenizer:
    """`folder` holds `tokenizer.json` and `tokenizer_config.json` (with `chat_template`)."""

    def __init__(self, folder: Path = MODEL_FOLDER) -> None:
        self._backend = Backend.from_file(str(folder / "tokenizer.json"))
        config = msgspec.json.decode((folder / "tokenizer_config.json").read_bytes())
        self._template = _environment().from_string(config["chat_template"])
        end = self._backend.token_to_id(config["eos_token"])
        if end is None:
            raise ValueError(f"{folder}: the end token {config['eos_token']!r} has no id")
        self.end_token: int = end
        self.size: int = self._backend.get_vocab_size()

    def encode(self, text: str) -> "array[int]":
        """Token ids; the text of a special token becomes that token, and nothing is added."""
        return as_tokens(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Iterable[int], *, keep_special: bool = True) -> str:
        """The text of these tokens; incomplete UTF-8 becomes U+FFFD."""
        text: str = self._backend.decode(list(tokens), skip_special_tokens=not keep_special)
        return text

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """The vocabulary's entries, as `/tokenize` shows them with `return_token_strs`."""
        return [self._backend.id_to_token(token) or "" for token in tokens]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a chat. `options`: `add_generation_prompt` and what else a template reads.

        TemplateFailed if the template refuses, or can't read, these messages.
        """
        try:
            return self._template.render(
                messages=[_plain(message) for message in messages],
                tools=list(tools) if tools else None,
                **{"add_generation_prompt": True, **(options or {})},
            )
        except (TemplateError, TypeError, KeyError, ValueError) as exc:
            raise TemplateFailed(str(exc)) from exc


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML; Hugging Face's templates expect plain JSON.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: text parts joined, tool arguments as objects."""
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join(_part_text(part) for part in content)
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") not in ("text", "input_text", "output_text"):
        raise ValueError(f"a {part.get('type')!r} part: this model reads text only")
    return str(part["text"])


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        function["arguments"] = json.loads(function["arguments"] or "{}")
    return {**call, "function": function}
