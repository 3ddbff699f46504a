"""The files of a model directory that say how text becomes ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

SPECIAL_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
CONFIG: Final = "tokenizer_config.json"
HARMONY_MODEL: Final = "gpt_oss"
ENGINE_FORMATS: Final = frozenset({"deepseek_v32", "deepseek_v4", "kimi_k3", "inkling"})
"""Model types whose chats vLLM renders by code of its own, whatever template the files hold."""

TEKKEN: Final = "tekken.json"
SENTENCEPIECE_OF_MISTRAL: Final = "tokenizer.model.v*"
DEFAULT_TEMPLATE: Final = "default"
TOOL_TEMPLATE: Final = "tool_use"


class UnusableModelDir(Exception):
    """A file is missing or cannot be read; the message names it."""


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


@dataclass(frozen=True, slots=True)
class ModelDir:
    """What was found. `templates`: sources by name; empty if the model has no chat template.

    `is_harmony`: its chats are written in that format, whatever template the files hold.
    """

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    templates: Mapping[str, str]
    is_harmony: bool = False


def tekken_file(path: Path) -> Path | None:
    """The file by which engines tokenize, whatever others there are; only Mistral's have it."""
    file = path / TEKKEN
    return file if file.is_file() else None


def read_model_dir(path: Path) -> ModelDir:
    """Read tokenizer.json and, where present, tokenizer_config.json and the template files.

    tokenizer.json alone says whether BOS and EOS are added: `transformers` 5 passes over
    add_bos_token and add_eos_token where there is one.
    """
    if found := next(path.glob(SENTENCEPIECE_OF_MISTRAL), None):
        raise UnusableModelDir(
            f"{found}: engines use this file by mistral-common, which is not followed here. Name "
            "no directory for it, and its replicas' /tokenize is asked (tokens.remote)"
        )
    config = _json_object(path / CONFIG)
    special = _special_tokens({**_json_object(path / "special_tokens_map.json"), **config})
    tokenizer = _tokenizer(path / "tokenizer.json")
    model_type = _json_object(path / "config.json").get("model_type")
    if model_type == HARMONY_MODEL:
        return ModelDir(tokenizer, special, {}, is_harmony=True)
    if model_type in ENGINE_FORMATS:
        return ModelDir(tokenizer, special, {})
    return ModelDir(tokenizer, special, _templates(path, config.get("chat_template")))


def _tokenizer(file: Path) -> Tokenizer:
    if not file.is_file():
        raise UnusableModelDir(f"{file} is missing")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as exc:
        raise UnusableModelDir(f"{file} cannot be read: {exc}") from exc


def _json_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as exc:
        raise UnusableModelDir(f"{file} cannot be read: {exc}") from exc


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in SPECIAL_TOKENS:
        token = config.get(name)
        if isinstance(token, dict):  # a serialized AddedToken
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _templates(path: Path, configured: Any) -> dict[str, str]:
    """Sources by name. Template files win over the configuration, as in `transformers`."""
    files = {DEFAULT_TEMPLATE: path / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted(path.glob("additional_chat_templates/*.jinja"))}
    found = {name: _text(file) for name, file in files.items() if file.is_file()}
    if found or configured is None:
        return found
    try:
        named = msgspec.convert(configured, str | list[_NamedTemplate])
    except msgspec.ValidationError as exc:
        raise UnusableModelDir(f"chat_template in {path / CONFIG} cannot be read: {exc}") from exc
    if isinstance(named, str):
        return {DEFAULT_TEMPLATE: named}
    return {entry.name: entry.template for entry in named}


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UnusableModelDir(f"{file} cannot be read: {exc}") from exc
