"""Tokenizing by a replica: its /tokenize knows the model's template and tokenizer best."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any, Final

import aiohttp
import msgspec

from router.blocks import as_tokens
from router.openai.fields import GenerationFields, is_given
from router.openai.generation import Generation, Kind
from router.tokens.conversation import conversation
from router.tokens.memo import Memo
from router.tokens.prompt import (
    ChatPrompt,
    IdsPrompt,
    TextPrompt,
    Truncation,
    adds_special_tokens,
    read_prompt,
    read_truncation,
)
from router.tokens.protocol import Reason, TokenizeFailed

Urls = Callable[[str], Sequence[str]]
"""Model → base URLs of replicas that serve it and can be asked now."""


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """What asking may cost.

    `max_pending`: asks in flight; one more fails at once (busy). `max_bytes`: of the prompt's
    JSON, which is decoded on the event loop (10 ms for 1 MiB of ordinary messages).
    """

    deadline_s: float = 0.5
    max_pending: int = 32
    max_bytes: int = 1024 * 1024
    max_answer_bytes: int = 16 * 1024 * 1024
    memo_bytes: int = 32 * 1024 * 1024


class _Answer(msgspec.Struct):
    tokens: list[int]


DEFAULT_LIMITS: Final = RemoteLimits()
REFUSALS: Final = frozenset({400, 413, 422})
"""Statuses that mean the prompt is at fault; all others mean that this replica is no help."""

_decode_answer = msgspec.json.Decoder(_Answer).decode


class RemoteTokenizer:
    """Asks one of a model's replicas. `headers`: sent with each ask (the replicas' API key)."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: Urls,
        *,
        rng: Random,
        limits: RemoteLimits = DEFAULT_LIMITS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.memo: Memo[bytes] = Memo(limits.memo_bytes)
        self._session = session
        self._urls = urls
        self._rng = rng
        self._limits = limits
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._pending = 0

    async def tokenize(self, generation: Generation) -> bytes:
        truncation = read_truncation(generation.fields)
        prompt = read_prompt(generation, self._limits.max_bytes)
        if isinstance(prompt, IdsPrompt):
            return prompt.ids if truncation is None else truncation.slice_ids(prompt.ids)
        if truncation is not None and not _can_cut(generation, truncation):
            raise TokenizeFailed(Reason.UNSUPPORTED)
        ids = await self._recall_or_ask(generation.model, _body(generation, prompt))
        return ids if truncation is None else truncation.slice_ids(ids)

    def recall(self, generation: Generation) -> bytes | None:
        """See `Tokenizer`. What its memo has is known by the ask, which must be made first."""
        return None

    async def _recall_or_ask(self, model: str, body: bytes) -> bytes:
        key = blake2b(body, digest_size=16).digest()
        ids = self.memo.get(key)
        if ids is None:
            ids = await self._ask_in_time(model, body)
            self.memo.put(key, ids)
        return ids

    async def _ask_in_time(self, model: str, body: bytes) -> bytes:
        urls = self._urls(model)
        if not urls:
            raise TokenizeFailed(Reason.UNAVAILABLE)
        if self._pending >= self._limits.max_pending:
            raise TokenizeFailed(Reason.BUSY)
        self._pending += 1
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                return await self._ask(self._rng.choice(urls), body)
        except TimeoutError as exc:
            raise TokenizeFailed(Reason.TIMEOUT) from exc
        except aiohttp.ClientError as exc:
            raise TokenizeFailed(Reason.UNAVAILABLE) from exc
        finally:
            self._pending -= 1

    async def _ask(self, url: str, body: bytes) -> bytes:
        async with self._session.post(
            f"{url}/tokenize", data=body, headers=self._headers, allow_redirects=False
        ) as response:
            if response.status in REFUSALS:
                raise TokenizeFailed(Reason.INVALID)
            if response.status != 200:
                raise TokenizeFailed(Reason.UNAVAILABLE)
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > self._limits.max_answer_bytes:
                    raise TokenizeFailed(Reason.TOO_LARGE)
        return _ids(bytes(answer))


def _ids(answer: bytes) -> bytes:
    try:
        return as_tokens(_decode_answer(answer).tokens).tobytes()
    except (msgspec.MsgspecError, OverflowError) as exc:
        raise TokenizeFailed(Reason.UNAVAILABLE) from exc


def _can_cut(generation: Generation, truncation: Truncation) -> bool:
    """Which ids are BOS and EOS, kept when no side is named, an answer does not tell."""
    return truncation.side is not None or not adds_special_tokens(generation)


def _body(generation: Generation, prompt: ChatPrompt | TextPrompt) -> bytes:
    """The ask: the same messages or prompt, and every field that changes their ids."""
    ask: dict[str, Any] = {
        "model": generation.model,
        "add_special_tokens": adds_special_tokens(generation),
    }
    if isinstance(prompt, TextPrompt):
        ask["prompt"] = prompt.text
    else:
        ask |= _chat_fields(generation.fields, prompt)
        if generation.kind is Kind.MESSAGES:
            ask["messages"] = prompt.read_messages()
            if prompt.tools is not None:
                ask["tools"] = prompt.tools
    return msgspec.json.encode(ask)


def _chat_fields(fields: GenerationFields, prompt: ChatPrompt) -> dict[str, Any]:
    if prompt.continue_final_message and prompt.add_generation_prompt:
        raise TokenizeFailed(Reason.INVALID)
    conversation(
        prompt.read_messages(), parts=True
    )  # refuses images, which ids alone don't describe
    ask: dict[str, Any] = {
        "messages": fields.messages,
        "add_generation_prompt": prompt.add_generation_prompt,
        "continue_final_message": prompt.continue_final_message,
        # /tokenize has no documents or reasoning_effort, but the template takes them as variables.
        "chat_template_kwargs": prompt.variables,
    }
    if prompt.tools is not None:
        ask["tools"] = fields.tools
    if is_given(fields.chat_template):
        ask["chat_template"] = fields.chat_template
    return ask
