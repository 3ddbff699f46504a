"""Chats of Mistral's models as vLLM has them made: by mistral-common, from the model's tekken.json.

Follows vllm/tokenizers/mistral.py and renderers/online_renderer.py of 0.32.0. The library lays out
the prompt; its texts are only noted on the way and become pieces, so that those known from before
come from the memo and long ones are encoded in a thread. No text can write a special token.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from router.blocks import as_tokens
from router.openai.fields import is_given, scalar
from router.openai.generation import Generation, Kind
from router.tokens.conversation import TEXT_FIELD, tool_schemas
from router.tokens.encoder import LITERAL, Edges, PieceEncoder, literal
from router.tokens.memo import Memo
from router.tokens.model_dir import UnusableModelDir
from router.tokens.prompt import ChatPrompt
from router.tokens.protocol import Reason, TokenizeFailed

CALL_ID_CHARS: Final = 9
"""The engine keeps so many characters of a call's id, the last ones."""

FIRST_WITH_SETTINGS: Final = 15
"""Tokenizer version from which the engine hands `reasoning_effort` on."""


class TekkenEncoder(PieceEncoder):
    """The vocabulary of a tekken.json. All pieces are literal."""

    def __init__(self, file: Path, memo: Memo[str]) -> None:
        """Raises UnusableModelDir."""
        super().__init__(memo)
        self.library = _library(file)
        self._tekken = self.library.instruct_tokenizer.tokenizer
        self._shift = self._tekken.num_special_tokens
        self.edges = Edges(as_tokens([self._tekken.bos_id]).tobytes())

    @property
    def cuts(self) -> bool:
        return True

    def token_text(self, token: int | None) -> str | None:
        if token is None or not 0 <= token < self._tekken.n_words:
            return None
        text: str = self._tekken.id_to_piece(token)
        return text

    def pieces(self, text: str) -> list[str]:
        return [literal("", text)] if text else []

    def _encode(self, piece: str) -> bytes:
        _, special, text = piece.split(LITERAL, 2)
        head = [self._tekken.get_special_token(special)] if special else []
        return as_tokens([*head, *self._text_ids(text)]).tobytes()

    def _text_ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tekken.encode(text, bos=False, eos=False)
        except ValueError as exc:  # its regex gives up on a million spaces; so does the engine's
            raise TokenizeFailed(Reason.INVALID) from exc
        return ids


class MistralFormat:
    """Chats in the format of a tekken.json's version. `variables`: the engine's own defaults."""

    def __init__(self, encoder: TekkenEncoder, variables: Mapping[str, Any]) -> None:
        self._encoder = encoder
        self._library = encoder.library
        self._variables = variables
        instruct = self._library.instruct_tokenizer
        self._version = int(str(instruct.tokenizer.version.value).partition("v")[2])
        self._notes = _Notes(instruct.tokenizer)
        instruct.tokenizer = self._notes
        requests = importlib.import_module("mistral_common.protocol.instruct.request")
        self._request = requests.ChatCompletionRequest.from_openai
        self._efforts = frozenset(effort.value for effort in requests.ReasoningEffort)

    def pieces(self, generation: Generation, prompt: ChatPrompt) -> list[str]:
        """Any thread may run this. Raises TokenizeFailed."""
        if generation.kind is not Kind.CHAT:
            raise TokenizeFailed(Reason.UNSUPPORTED)
        self._refuse_what_the_engine_refuses(generation, prompt)
        for message in prompt.messages:
            _only_text(message)
        with self._notes as texts:
            try:
                tokens = self._lay_out(prompt)
            except Exception as exc:  # whatever it is, the engine answers 400
                raise TokenizeFailed(Reason.INVALID) from exc
            return list(self._cut(tokens, texts))

    def _refuse_what_the_engine_refuses(self, generation: Generation, prompt: ChatPrompt) -> None:
        fields = generation.fields
        if is_given(fields.chat_template) or is_given(fields.chat_template_kwargs):
            raise TokenizeFailed(Reason.INVALID)
        effort = scalar(fields.reasoning_effort)
        if is_given(fields.reasoning_effort) and effort not in self._efforts:
            raise TokenizeFailed(Reason.INVALID)
        if not prompt.messages or not all(isinstance(one, dict) for one in prompt.messages):
            raise TokenizeFailed(Reason.INVALID)
        is_answer = prompt.messages[-1].get("role") == "assistant"
        if prompt.continue_final_message:
            if prompt.add_generation_prompt or not is_answer:
                raise TokenizeFailed(Reason.INVALID)
        elif prompt.add_generation_prompt and is_answer:
            raise TokenizeFailed(Reason.INVALID)

    def _lay_out(self, prompt: ChatPrompt) -> list[int]:
        """Ids of special tokens; negative numbers stand for the texts between them."""
        settings = {}
        if self._version >= FIRST_WITH_SETTINGS:
            variables = {**self._variables, **prompt.variables}
            settings["reasoning_effort"] = variables.get("reasoning_effort")
        request = self._request(
            messages=[_as_validated(message) for message in prompt.messages],
            tools=None if prompt.tools is None else tool_schemas(prompt.tools),
            continue_final_message=prompt.continue_final_message,
            **settings,
        )
        tokens: list[int] = self._library.encode_chat_completion(request).tokens
        return tokens

    def _cut(self, tokens: list[int], texts: list[str]) -> Iterator[str]:
        special = ""
        for token in tokens:
            if token < 0:
                yield literal(special, texts[~token])
                special = ""
                continue
            if special:
                yield literal(special, "")
            special = self._encoder.token_text(token) or ""
        if special:
            yield literal(special, "")


class _Notes(threading.local):
    """Stands in for the library's vocabulary: notes the texts instead of encoding them.

    Use it in a `with`, which gives the texts noted by this thread; text `n` is `~n` in the ids.
    """

    def __init__(self, tekken: Any) -> None:
        self._tekken = tekken
        self._texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tekken, name)

    def __enter__(self) -> list[str]:
        self._texts = []
        return self._texts

    def __exit__(self, *_: object) -> None:
        self._texts = []

    def encode(self, s: str, bos: bool, eos: bool) -> list[int]:
        if not s:
            ids = []
        else:
            ids = [~len(self._texts)]
            self._texts.append(s)
        before, after = [self._tekken.bos_id] * bos, [self._tekken.eos_id] * eos
        return [*before, *ids, *after]

    def decode(self, *_: object, **__: object) -> str:
        """The library spells every prompt for its log; nobody reads that here."""
        return ""


def _library(file: Path) -> Any:
    try:
        tokenizers = importlib.import_module("mistral_common.tokens.tokenizers.mistral")
        validators = importlib.import_module("mistral_common.protocol.instruct.validator")
    except ImportError as exc:
        raise UnusableModelDir(
            f"{file}: this model needs mistral-common; pip install warmgate[mistral], or name no "
            "directory for it, and its replicas' /tokenize is asked (tokens.remote)"
        ) from exc
    try:
        return tokenizers.MistralTokenizer.from_file(file, mode=validators.ValidationMode.test)
    except Exception as exc:
        raise UnusableModelDir(f"{file} cannot be read: {exc!r}") from exc


def _only_text(message: dict[str, Any]) -> None:
    """Asked before the library sees a message: it would fetch what an image's address names."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise TokenizeFailed(Reason.INVALID)
        if kind not in TEXT_FIELD:
            raise TokenizeFailed(Reason.MULTIMODAL)
        if kind != "text" or set(part) != {"type", "text"}:
            raise TokenizeFailed(Reason.UNSUPPORTED)


def _as_validated(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the engine's validation leaves it: arguments as objects, ids of calls cut."""
    made = dict(message)
    if made.get("role") == "assistant":
        made["tool_calls"] = [_call(call) for call in made.get("tool_calls") or ()]
        if made.get("reasoning") is None and isinstance(made.get("reasoning_content"), str):
            made["reasoning"] = made["reasoning_content"]
        made.pop("reasoning_content", None)
    elif made.get("role") == "tool" and "tool_call_id" in made:
        made["tool_call_id"] = made["tool_call_id"][-CALL_ID_CHARS:]
    return made


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    function["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {**call, "id": call["id"][-CALL_ID_CHARS:], "function": function}
