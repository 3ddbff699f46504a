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
from workers.engine.chats import plain_messages, plain_tools

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
                messages=plain_messages(messages),
                tools=plain_tools(tools),
                **{"add_generation_prompt": True, **(options or {})},
            )
        except (TemplateError, TypeError, KeyError, ValueError) as exc:
            raise TemplateFailed(str(exc)) from exc

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The same, but the last message is left open, for the answer to go on with it."""
        text = self.render(messages, tools, {**(options or {}), "add_generation_prompt": False})
        last = str(plain_messages(messages)[-1]["content"])
        start = text.rindex(last.strip())
        # Space at its end stays if the template left it there (as Hugging Face does it).
        whole = start + len(last.lstrip())
        kept = text[start:whole] == last
        return text[: whole if kept else start + len(last.strip())]


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
