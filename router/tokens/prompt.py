"""The part of a body that decides which ids the engine computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from router.blocks import as_tokens
from router.blocks.hashing import BYTES_PER_TOKEN
from router.openai import fields as field
from router.openai.fields import GenerationFields
from router.openai.generation import Generation, Kind
from router.tokens import anthropic
from router.tokens.protocol import Reason, TokenizeFailed

T = TypeVar("T")

RESERVED: Final = frozenset({"messages", "conversation", "tools", "tokenize", "chat_template"})
"""Template variables that the engine takes for its own arguments."""

UNSET: Final = (None, "auto")
"""Values that leave a template variable at the engine's default."""


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages and whatever else the chat template can see, not yet rebuilt.

    `messages`: decoded, or JSON (Raw) if they were asked for so.
    """

    messages: list[Any] | Raw
    tools: list[Any] | None
    variables: dict[str, Any]
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def read_messages(self) -> list[Any]:
        """All of them decoded. Raises TokenizeFailed."""
        if isinstance(self.messages, list):
            return self.messages
        return _decode(self.messages, list[Any], memoryview(self.messages).nbytes)

    def as_json(self) -> Raw:
        """All of them in JSON."""
        return self.messages if isinstance(self.messages, Raw) else Raw(_encode(self.messages))


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """Ids that the client computed itself, in the bytes that `Tokenizer.tokenize` returns."""

    ids: bytes


Prompt: TypeAlias = ChatPrompt | TextPrompt | IdsPrompt


@dataclass(frozen=True, slots=True)
class Truncation:
    """Keep `keep` ids of the prompt, from `side`; None: the engine's own side, the left one."""

    keep: int
    side: str | None = None

    def slice_ids(self, ids: bytes) -> bytes:
        """Cut a whole prompt of ids."""
        size = self.keep * BYTES_PER_TOKEN
        if size >= len(ids):
            return ids
        return ids[:size] if self.side == "right" else ids[len(ids) - size :]


def read_prompt(generation: Generation, max_bytes: int, *, as_json: bool = False) -> Prompt:
    """Decode the prompt of one body. `max_bytes` bounds the JSON that is decoded.

    Of several prompts in one body the first is read. `as_json` leaves a chat's messages
    undecoded. Raises TokenizeFailed.
    """
    if generation.is_skimmed:
        raise TokenizeFailed(Reason.TOO_LARGE)
    fields = generation.fields
    if generation.kind is Kind.CHAT:
        return _chat(fields, max_bytes, as_json=as_json)
    if generation.kind is Kind.MESSAGES:
        return _anthropic(fields, max_bytes)
    if generation.kind is Kind.COMPLETION:
        return _text(fields, max_bytes)
    for ids in (fields.input_ids, fields.token_ids):
        if field.is_given(ids):
            return _completion(ids, max_bytes)
    raise TokenizeFailed(Reason.UNSUPPORTED)


def is_one_prompt(generation: Generation) -> bool:
    """Whether a reply's count of prompt tokens is about one prompt, and about all of it."""
    fields = generation.fields
    return field.is_given(fields.messages) or not _is_batch(fields.prompt)


def adds_special_tokens(generation: Generation) -> bool:
    """Whether BOS and the like are added to the text: for completions by default, not for chat."""
    default = generation.kind not in (Kind.CHAT, Kind.MESSAGES)
    return _flag(generation.fields.add_special_tokens, default=default)


def read_truncation(fields: GenerationFields) -> Truncation | None:
    """What `truncate_prompt_tokens` asks for. -1, the model's own limit, cuts no valid prompt."""
    if not field.is_given(fields.truncate_prompt_tokens):
        return None
    keep, side = field.integer(fields.truncate_prompt_tokens), field.text(fields.truncation_side)
    if keep is None or keep < -1 or side not in (None, "left", "right"):
        raise TokenizeFailed(Reason.INVALID)
    return None if keep == -1 else Truncation(keep, side)


def decode_message(raw: Raw) -> Any:
    """One message's JSON. Raises TokenizeFailed."""
    return _decode(raw, Any, memoryview(raw).nbytes)


def _chat(fields: GenerationFields, max_bytes: int, *, as_json: bool) -> ChatPrompt:
    return ChatPrompt(
        messages=_messages(fields.messages, max_bytes, as_json=as_json),
        tools=_tools(fields.tools, max_bytes),
        variables=_variables(fields, max_bytes),
        add_generation_prompt=_flag(fields.add_generation_prompt, default=True),
        continue_final_message=_flag(fields.continue_final_message, default=False),
    )


def _messages(raw: Raw, max_bytes: int, *, as_json: bool) -> list[Any] | Raw:
    if not as_json:
        return _decode(raw, list[Any], max_bytes)
    if memoryview(raw).nbytes > max_bytes:
        raise TokenizeFailed(Reason.TOO_LARGE)
    return raw


def _anthropic(fields: GenerationFields, max_bytes: int) -> ChatPrompt:
    system, thinking, output = (
        _decode(raw, Any, max_bytes) if field.is_given(raw) else None
        for raw in (fields.system, fields.thinking, fields.output_config)
    )
    kwargs = fields.chat_template_kwargs
    own = _decode(kwargs, dict[str, Any], max_bytes) if field.is_given(kwargs) else {}
    effort = anthropic.reasoning_effort(thinking, output)
    messages = _decode(fields.messages, list[Any], max_bytes)
    tools = _decode(fields.tools, list[Any], max_bytes) if field.is_given(fields.tools) else None
    return ChatPrompt(
        messages=anthropic.chat_messages(system, messages),
        tools=None if tools is None else anthropic.chat_tools(tools),
        variables=_merged(own, {}, effort),
    )


def _tools(raw: Raw, max_bytes: int) -> list[Any] | None:
    if not field.is_given(raw):
        return None
    tools = _decode(raw, list[Any], max_bytes)
    if not tools:
        raise TokenizeFailed(Reason.INVALID)
    return tools


def _variables(fields: GenerationFields, max_bytes: int) -> dict[str, Any]:
    """The template's variables, merged in the engine's order; `RESERVED` names are refused."""
    variables: dict[str, Any] = {}
    if field.is_given(fields.chat_template_kwargs):
        variables = _decode(fields.chat_template_kwargs, dict[str, Any], max_bytes)
    extra: dict[str, Any] = {}
    effort = None
    if field.is_given(fields.documents):
        extra["documents"] = _decode(fields.documents, list[dict[str, str]], max_bytes)
    if field.is_given(fields.reasoning_effort):
        effort = field.text(fields.reasoning_effort)
        if effort is None:
            raise TokenizeFailed(Reason.INVALID)
    return _merged(variables, extra, effort)


def _merged(variables: dict[str, Any], extra: dict[str, Any], effort: str | None) -> dict[str, Any]:
    if not RESERVED.isdisjoint(variables):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    if effort is not None:
        extra["reasoning_effort"] = effort
        if "enable_thinking" not in variables:
            extra["enable_thinking"] = effort != "none"
    merged = variables | extra
    return {name: value for name, value in merged.items() if value not in UNSET}


def _text(fields: GenerationFields, max_bytes: int) -> TextPrompt | IdsPrompt:
    if field.is_given(fields.prompt_embeds):
        raise TokenizeFailed(Reason.MULTIMODAL)
    if field.is_given(fields.suffix):
        raise TokenizeFailed(Reason.UNSUPPORTED)
    return _completion(fields.prompt, max_bytes)


def _completion(raw: Raw, max_bytes: int) -> TextPrompt | IdsPrompt:
    """A text, ids, or the first of a list of either."""
    if _is_batch(raw):
        raw = _decode(raw, list[Raw], max_bytes)[0]
    if field.starts_with(raw, b'"'):
        return TextPrompt(_decode(raw, str, max_bytes))
    ids = _decode(raw, list[int], max_bytes)
    try:
        return IdsPrompt(as_tokens(ids).tobytes())
    except OverflowError as exc:
        raise TokenizeFailed(Reason.INVALID) from exc


def _is_batch(raw: Raw) -> bool:
    inside = bytes(memoryview(raw)[1:64]).lstrip()[:1]
    return field.starts_with(raw, b"[") and inside in (b'"', b"[")


def _flag(raw: Raw, *, default: bool) -> bool:
    if not field.is_given(raw):
        return default
    value = field.flag(raw)
    if value is None:
        raise TokenizeFailed(Reason.INVALID)
    return value


def _decode(raw: Raw, shape: type[T], max_bytes: int) -> T:
    if memoryview(raw).nbytes > max_bytes:
        raise TokenizeFailed(Reason.TOO_LARGE)
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise TokenizeFailed(Reason.INVALID) from exc
