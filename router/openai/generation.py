"""One client's ask, parsed once: what routing needs to know, beside the body as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from router.errors import InvalidRequest
from router.openai import fields as field
from router.openai.fields import GenerationFields
from router.openai.skim import without_data


class Kind(StrEnum):
    """What shape of prompt a path takes."""

    CHAT = "chat"
    COMPLETION = "completion"
    MESSAGES = "messages"
    """Anthropic's API, which vLLM serves too."""
    OTHER = "other"


class Generation(msgspec.Struct, frozen=True):
    """A parsed ask. `body` holds the client's bytes, unchanged; `salt` is its `cache_salt`."""

    path: str
    model: str
    stream: bool
    body: bytes
    fields: GenerationFields
    session: str | None = None
    salt: str | None = None
    is_skimmed: bool = False
    """Long `data:` strings were passed over: `fields` don't say all that the body does."""

    @property
    def kind(self) -> Kind:
        return kind_of(self.path)


DEFAULT_SESSION_HEADERS: Final = ("x-session-id",)

_decode = msgspec.json.Decoder(GenerationFields).decode


@lru_cache(maxsize=64)
def kind_of(path: str) -> Kind:
    """The kind by the path's end, so that a prefix before `/v1` does not matter."""
    path = path.partition("?")[0].rstrip("/")
    if path.endswith("/chat/completions"):
        return Kind.CHAT
    if path.endswith("/messages"):
        return Kind.MESSAGES
    return Kind.COMPLETION if path.endswith("/completions") else Kind.OTHER


def parse_generation(
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    session_headers: Sequence[str] = DEFAULT_SESSION_HEADERS,
) -> Generation:
    """Read the fields that routing needs, in one pass over the body.

    Refuses (`InvalidRequest`) only what cannot be routed: no JSON object, no model, no prompt.
    All else is the engine's to judge. `headers`: names in any case if the mapping does not care
    about it, otherwise in lower case. Several spellings of one key: the last one counts.
    """
    skimmed = without_data(body)
    fields = _read(body if skimmed is None else skimmed)
    model = _model(fields)
    _require_prompt(kind_of(path), fields)
    return Generation(
        path=path,
        model=model,
        stream=field.flag(fields.stream) is True,
        body=body,
        fields=fields,
        session=_session(headers, fields, session_headers),
        salt=field.text(fields.cache_salt),
        is_skimmed=skimmed is not None,
    )


def _read(body: bytes) -> GenerationFields:
    try:
        return _decode(body)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"The body must be a JSON object. {exc}.") from exc
    except msgspec.DecodeError as exc:
        reason = "it is empty" if not body.strip() else str(exc).removeprefix("JSON is malformed: ")
        raise InvalidRequest(
            f"The body is not valid JSON: {reason}. Send one JSON object in UTF-8."
        ) from exc
    except RecursionError as exc:
        raise InvalidRequest("The body's JSON is nested too deeply.") from exc


def _model(fields: GenerationFields) -> str:
    model = field.text(fields.model)
    if model is not None and not model.isspace():
        return model
    if not field.is_given(fields.model):
        raise InvalidRequest("'model' is missing. Name one of the models that /v1/models lists.")
    raise InvalidRequest("'model' must be a string that is not empty.")


def _require_prompt(kind: Kind, fields: GenerationFields) -> None:
    if kind is Kind.CHAT:
        if field.starts_with(fields.messages, b"["):
            return
        if not field.is_given(fields.messages):
            raise InvalidRequest("'messages' is missing. Send a list of chat messages.")
        raise InvalidRequest("'messages' must be a list of chat messages.")
    if kind is Kind.COMPLETION:
        if field.is_given(fields.prompt_embeds):
            return
        if not field.is_given(fields.prompt):
            raise InvalidRequest("'prompt' is missing. Send a string or a list of token ids.")
        if not (field.starts_with(fields.prompt, b'"') or field.starts_with(fields.prompt, b"[")):
            raise InvalidRequest("'prompt' must be a string, or a list of strings or token ids.")


def _session(
    headers: Mapping[str, str], fields: GenerationFields, session_headers: Sequence[str]
) -> str | None:
    """What the client says belongs together.

    Never a request id, an address or a credential: those change too often, or keep one busy
    client's whole traffic on one replica. `user` is a person, not a conversation.
    """
    for name in session_headers:
        if value := headers.get(name, "").strip():
            return value
    return field.text(fields.prompt_cache_key) or field.text(fields.session_id)
