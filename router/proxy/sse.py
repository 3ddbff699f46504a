"""Events of a stream: where they end, which one is the first token, and how a stream fails."""

import json
import re
from enum import Enum
from typing import Any

import msgspec

from router.errors import RouterError

STREAM_TYPE = b"text/event-stream"
_TOO_LONG = re.compile(
    rb"context.{0,3}length|max_model_len|maximum.{0,20}(?:length|tokens)|prompt.{0,40}too long"
    rb"|longer than the model|exceeds? the (?:model|max)",
    re.IGNORECASE,
)
_ERROR_EVENTS = (b'data: {"error"', b'data:{"error"', b"event: error", b"event:error")


class Sign(Enum):
    """What an event at the beginning of a stream shows."""

    COMMENT = "comment"
    NOTHING_YET = "nothing_yet"
    TOKEN = "token"
    ABORT = "abort"


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    text: str | None = None
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    token_ids: list[int] | None = None

    @property
    def has_output(self) -> bool:
        said = self.delta or self.message or {}
        return bool(self.text or self.token_ids) or any(
            value for key, value in said.items() if key != "role"
        )


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Answer)


def first_event_end(data: bytes | bytearray, start: int = 0) -> int:
    """Offset after the first blank line from `start` on, -1 if there is none."""
    plain = data.find(b"\n\n", start)
    other = data.find(b"\n\r\n", start, plain if plain >= 0 else len(data))
    if other >= 0:
        return other + 3
    return plain + 2 if plain >= 0 else -1


def last_event_end(data: bytes | bytearray, start: int = 0) -> int:
    """Offset after the last blank line from `start` on, 0 if there is none."""
    plain = data.rfind(b"\n\n", start)
    other = data.rfind(b"\n\r\n", start)
    if plain < 0 and other < 0:
        return 0
    return max(plain + 2, other + 3 if other >= 0 else 0)


def sign_of(event: bytes) -> Sign:
    """What one whole event shows. An event of a kind that we don't know counts as a token."""
    lines = event.replace(b"\r\n", b"\n").strip(b"\n").split(b"\n")
    if all(line.startswith(b":") or not line for line in lines):
        return Sign.COMMENT
    data = b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))
    return _sign_of_json(data)


def is_aborted(body: bytes) -> bool:
    """A JSON answer that the engine gave up on before it had made a token."""
    return b'"abort"' in body and _sign_of_json(body) is Sign.ABORT


def holds_error(tail: bytes) -> bool:
    """The engine itself ended the stream with an error event."""
    # one look at what nearly no stream holds, rather than one for each mark
    return b"error" in tail and any(
        tail.startswith(mark) or b"\n" + mark in tail for mark in _ERROR_EVENTS
    )


def says_too_long(error: bytes) -> bool:
    """An engine's error text blames the prompt's length."""
    return _TOO_LONG.search(error) is not None


def error_event(path: str, error: RouterError) -> bytes:
    """An event that the official client of the API behind `path` raises as an error."""
    facts = {"message": error.message, "type": error.type, "code": error.code}
    if path.endswith("/messages"):
        facts = {"type": "api_error", "message": error.message}
        return b"event: error\ndata: %b\n\n" % _dump({"type": "error", "error": facts})
    return b"data: %b\n\n" % _dump({"error": facts})


def _sign_of_json(text: bytes) -> Sign:
    try:
        choices = _decoder.decode(text).choices
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Sign.TOKEN
    if any(choice.has_output for choice in choices):
        return Sign.TOKEN
    reasons = {choice.finish_reason for choice in choices} - {None}
    if not reasons:
        return Sign.NOTHING_YET
    return Sign.ABORT if reasons == {"abort"} else Sign.TOKEN


def _dump(value: object) -> bytes:
    return json.dumps(value).encode()
