"""What clients ask for: bodies as vLLM reads them, checked, refused in vLLM's words."""

from array import array
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from router.blocks import as_tokens
from workers.engine.tokenizer import TemplateFailed, Tokenizer

MAX_SALT_LENGTH: Final = 128
COMPLETION_TOKENS: Final = 16
"""vLLM's default for completions; chats default to what is left of the context."""


class Refused(Exception):
    """A request that gets an error body. `kind` is OpenAI's error type."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The JSON error object, as vLLM writes it."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


class StreamOptions(Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Ask(Struct, frozen=True, kw_only=True):
    """What chats and completions have in common. Unknown fields are ignored, as by vLLM."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    logprobs: bool | int | None = None
    prompt_logprobs: int | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, without empty ones."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    @property
    def wanted_tokens(self) -> int | None:
        """The answer's limit as asked for; None is what is left of the context."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def usage_in_stream(self) -> StreamOptions:
        return self.stream_options or StreamOptions()


class Chat(Struct, frozen=True, kw_only=True):
    """What a template renders."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    def render(self, tokenizer: Tokenizer) -> str:
        """The prompt's text. Refused if the template, or vLLM, would refuse it."""
        options = {"documents": self.documents, **(self.chat_template_kwargs or {})}
        options.setdefault("add_generation_prompt", self.add_generation_prompt)
        if self.continue_final_message and options["add_generation_prompt"]:
            raise Refused(
                400,
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            )
        draw = tokenizer.render_open if self.continue_final_message else tokenizer.render
        try:
            return draw(self.messages, self.tools, options)
        except TemplateFailed as exc:
            raise Refused(400, str(exc)) from exc


class CompletionAsk(Ask, frozen=True, kw_only=True):
    """POST /v1/completions. `prompt`: text, token ids, or a list of either."""

    prompt: Any
    max_tokens: int | None = COMPLETION_TOKENS
    echo: bool = False

    def prompts(self) -> "list[str | array[int]]":
        """Each prompt as text or tokens. Refused if it is neither."""
        given = self.prompt
        if isinstance(given, str) or (isinstance(given, list) and _is_tokens(given)):
            given = [given]
        if not isinstance(given, list) or not given:
            raise Refused(400, "prompt must be a string, token ids or a list of them")
        return [_one_prompt(prompt) for prompt in given]


class TokenizeAsk(Struct, frozen=True, kw_only=True):
    """POST /tokenize with `prompt`. With `messages` the body is a `Chat` as well."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    return_token_strs: bool = False


class DetokenizeAsk(Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[Annotated[int, Meta(ge=0)]]
    model: str | None = None


AskT = TypeVar("AskT", bound=Struct)


def read_ask(kind: type[AskT], body: bytes) -> AskT:
    """Decode a body. Refused (400) if it is not of this kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as exc:
        raise Refused(400, f"1 validation error:\n  {exc}", "Bad Request", "body") from exc


def check_ask(ask: Ask) -> None:
    """Refuse what vLLM refuses, and what this engine can't do, before any work."""
    salt = ask.cache_salt
    if salt is not None and (len(salt) > MAX_SALT_LENGTH or set("@/\\\0") & set(salt)):
        raise Refused(
            400,
            f"Parameter 'cache_salt' must be at most {MAX_SALT_LENGTH} characters and must not "
            r"contain '@', '/', '\\', or NUL. (parameter=cache_salt)",
            param="cache_salt",
        )
    if ask.stream_options is not None and not ask.stream:
        raise Refused(400, "Stream options can only be defined when `stream=True`.")
    if ask.logprobs or ask.prompt_logprobs:
        raise Refused(400, "This engine has no logits: logprobs are not available.")
    if isinstance(ask, CompletionAsk) and ask.echo:
        raise Refused(400, "This engine does not echo prompts.")


def answer_limit(ask: Ask, prompt_tokens: int, max_model_len: int) -> int:
    """The most tokens that the answer can have. Refused if the context is too short for it."""
    if prompt_tokens == 0:
        raise Refused(400, "The decoder prompt cannot be empty")
    if prompt_tokens >= max_model_len:
        raise Refused(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {prompt_tokens} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )
    wanted = ask.wanted_tokens
    if wanted is None:
        return max_model_len - prompt_tokens
    _check_limit(wanted, prompt_tokens, max_model_len)
    return wanted


def truncated(ask: Ask, prompt: "array[int]", max_model_len: int) -> "array[int]":
    """The last tokens of a prompt, if the client wants no more; -1: as many as can be."""
    keep = ask.truncate_prompt_tokens
    if keep is None:
        return prompt
    keep = max_model_len if keep < 0 else keep
    return prompt[len(prompt) - keep :] if len(prompt) > keep else prompt


def _check_limit(wanted: int, prompt_tokens: int, max_model_len: int) -> None:
    if wanted < 1:
        raise Refused(
            400,
            f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})",
            param="max_tokens",
        )
    if wanted > max_model_len:
        raise Refused(
            400,
            f"max_tokens={wanted} cannot be greater than max_model_len={max_model_len}. Please "
            f"request fewer output tokens. (parameter=max_tokens, value={wanted})",
            param="max_tokens",
        )
    if prompt_tokens + wanted > max_model_len:
        raise Refused(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {wanted} output tokens and your prompt contains {prompt_tokens} input "
            f"tokens, for a total of {prompt_tokens + wanted} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )


def _is_tokens(given: list[Any]) -> bool:
    return bool(given) and all(type(item) is int for item in given)


def _one_prompt(given: Any) -> "str | array[int]":
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not _is_tokens(given):
        raise Refused(400, "prompt must be a string, token ids or a list of them")
    try:
        return as_tokens(given)
    except OverflowError as exc:
        raise Refused(400, "Token ids must be between 0 and 4294967295") from exc
