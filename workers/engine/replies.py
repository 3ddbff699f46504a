"""Reply bodies in vLLM's shape. Chunks of a stream are cut from templates made once per choice."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from workers.engine.sequence import Finish

FINGERPRINT: Final = "warmgate-engine"
DONE: Final = b"data: [DONE]\n\n"
_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; `created_tokens`: prompt tokens in blocks stored for it."""

    prompt_tokens: int
    completion_tokens: int
    hit_tokens: int = 0
    created_tokens: int = 0

    def brief(self) -> dict[str, Any]:
        """For chunks in the middle of a stream."""
        return self._counts() | {"completion_tokens_details": None}

    def in_stream(self, *, chat: bool) -> dict[str, Any]:
        """For the last chunk of a stream."""
        details = {"cached_tokens": self.hit_tokens}
        if chat:
            details["created_cache_tokens"] = self.created_tokens
        return self._counts() | {"prompt_tokens_details": details}

    def in_body(self, *, chat: bool) -> dict[str, Any]:
        """For a reply in one piece."""
        details = {
            "cached_tokens": self.hit_tokens,
            "created_cache_tokens": self.created_tokens if chat else None,
            "multimodal_tokens": None,
        }
        return self._counts() | {
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }

    def _counts(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished choice. `stop_reason`: the stop string or token that ended it, if one did."""

    index: int
    text: str
    finish: Finish
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the two APIs: how its bodies and chunks look."""

    chat: bool
    id_prefix: str
    whole: str
    chunk: str

    def body(self, head: "Head", outcomes: list[Outcome], usage: Usage) -> bytes:
        """A reply in one piece."""
        make = _chat_choice if self.chat else _completion_choice
        prompt = outcomes[0].prompt_token_ids if outcomes else None
        tail: dict[str, Any] = {"kv_transfer_params": None, "ec_transfer_params": None}
        if self.chat:
            tail = {"prompt_logprobs": None, "prompt_token_ids": prompt, "prompt_text": None} | tail
        return _encode(
            head.fields(self.whole)
            | {
                "choices": [make(outcome) for outcome in outcomes],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": usage.in_body(chat=self.chat),
            }
            | tail
            | {"metrics": None}
        )

    def opening(self, head: "Head", index: int, prompt: "array[int] | None") -> bytes:
        """A chat's first chunk: the role, and no text yet."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return _line(
            head.fields(self.chunk)
            | {
                "choices": [choice],
                "prompt_token_ids": prompt.tolist() if prompt is not None else None,
                "prompt_text": None,
            }
        )

    def token_template(self, head: "Head", index: int) -> tuple[bytes, bytes]:
        """What stands before and after a token's escaped text, in a chunk that ends nothing."""
        mark = "\N{BULLET}"
        line = self.token_line(head, index, mark, {})
        before, after = line.rsplit(mark.encode(), 1)
        return before, after

    def token_line(self, head: "Head", index: int, text: str, extra: Mapping[str, Any]) -> bytes:
        """A chunk with text. `extra`: finish_reason, stop_reason, token_ids, usage, ..."""
        choice: dict[str, Any] = {"index": index}
        choice |= {"delta": {"content": text}} if self.chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": extra.get("finish_reason")}
        if not self.chat or "finish_reason" in extra:
            choice["stop_reason"] = extra.get("stop_reason")
        if not self.chat:
            choice["prompt_token_ids"] = extra.get("prompt_token_ids")
        choice["token_ids"] = extra.get("token_ids")
        top = {key: extra[key] for key in ("usage", "system_fingerprint") if key in extra}
        return _line(head.fields(self.chunk) | {"choices": [choice]} | top)

    def usage_line(self, head: "Head", usage: Usage) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        return _line(
            head.fields(self.chunk)
            | {
                "choices": [],
                "usage": usage.in_stream(chat=self.chat),
                "system_fingerprint": FINGERPRINT,
            }
        )


CHAT: Final = Dialect(True, "chatcmpl-", "chat.completion", "chat.completion.chunk")
COMPLETION: Final = Dialect(False, "cmpl-", "text_completion", "text_completion")


@dataclass(frozen=True, slots=True)
class Head:
    """What all bodies and chunks of a reply begin with. `created`: Unix seconds."""

    id: str
    created: int
    model: str

    def fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def as_chunk(data: bytes) -> bytes:
    """One HTTP/1.1 chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _line(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(value)


def _chat_choice(outcome: Outcome) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": outcome.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": outcome.index,
        "message": message,
        "logprobs": None,
        "finish_reason": outcome.finish,
        "stop_reason": outcome.stop_reason,
        "token_ids": outcome.token_ids,
        "routed_experts": None,
    }


def _completion_choice(outcome: Outcome) -> dict[str, Any]:
    return {
        "index": outcome.index,
        "text": outcome.text,
        "logprobs": None,
        "finish_reason": outcome.finish,
        "stop_reason": outcome.stop_reason,
        "token_ids": outcome.token_ids,
        "prompt_logprobs": None,
        "prompt_token_ids": outcome.prompt_token_ids,
        "routed_experts": None,
    }
