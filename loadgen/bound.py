"""The best hit rate that was possible: one cache, without limit, in front of everything.

Engines keep full blocks only, and compute at least the last token of a prompt anew; so of a
prompt of n tokens at most (n - 1) // block_size blocks can hit. A request leaves its prompt's
blocks behind, and those of its answer but the last token, whose state is never computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import aiohttp
import msgspec

from loadgen.client import Target, as_prompt
from loadgen.record import Record
from loadgen.runner import RunResult
from loadgen.workload.protocol import Message
from router.blocks.hashing import as_tokens, hash_blocks

EXACT: Final = "token ids from /tokenize"
FROM_USAGE: Final = "prompt and answer lengths of each conversation"
TOKENIZE_AT_ONCE: Final = 4

Tokenize = Callable[[Sequence[Message]], Awaitable[list[int]]]


class TokenizeUnavailable(Exception):
    """The server has no /tokenize, or one that answers something else."""


class Bound(msgspec.Struct, frozen=True):
    """A share of the prompt tokens, and how it was found."""

    rate: float
    method: str


def exact_bound(
    records: Sequence[Record],
    tokens: Mapping[int, Sequence[int]],
    block_size: int,
    counted: Collection[int] | None = None,
) -> float | None:
    """From each record's prompt as token ids, in the order in which they were sent.

    `counted`: numbers of the records whose hits count (None: all); all of them fill the cache.
    """
    cached: set[int] = set()
    previous: dict[str, Record] = {}
    hit_tokens = prompt_tokens = 0
    for record in sorted(records, key=lambda record: record.sent_s):
        prompt = tokens[record.number]
        prefix = hash_blocks(as_tokens(prompt), block_size)
        before = previous.get(record.session)
        if before is not None:
            left = _left_behind(tokens[before.number], before.output_tokens, prompt)
            cached.update(prefix[: left // block_size])
        usable = prefix[: max(0, len(prompt) - 1) // block_size]
        if counted is None or record.number in counted:
            hit_tokens += _leading(usable, cached) * block_size
            prompt_tokens += len(prompt)
        cached.update(prefix)
        previous[record.session] = record
    return round(hit_tokens / prompt_tokens, 5) if prompt_tokens else None


def usage_bound(
    records: Sequence[Record], block_size: int, counted: Collection[int] | None = None
) -> float | None:
    """For conversations that share nothing with each other, from the engine's counts alone.

    Turn k finds turn k-1's prompt and answer. What different conversations have in common is
    not seen, so this is too low for other workloads.
    """
    before: dict[str, Record] = {}
    hit_tokens = prompt_tokens = 0
    for record in sorted(records, key=lambda record: record.sent_s):
        length = record.prompt_tokens
        if length is None:
            return None
        last = before.get(record.session)
        is_counted = counted is None or record.number in counted
        if last is not None and is_counted:
            left = (last.prompt_tokens or 0) + last.output_tokens - 1
            hit_tokens += min(left, length - 1) // block_size * block_size
        prompt_tokens += length * is_counted
        before[record.session] = record
    return round(hit_tokens / prompt_tokens, 5) if prompt_tokens else None


async def find_bound(
    result: RunResult,
    tokenize: Tokenize,
    block_size: int,
    counted: Collection[int] | None = None,
) -> Bound | None:
    """Exact if the prompts can be tokenized; else from usage, if there was a conversation."""
    ok = [record for record in result.records if record.is_ok]
    try:
        tokens = await _tokenize_all(ok, result.prompts, tokenize)
    except TokenizeUnavailable:
        has_turns = any(record.turn for record in ok)
        rate, method = usage_bound(ok, block_size, counted) if has_turns else None, FROM_USAGE
    else:
        rate, method = exact_bound(ok, tokens, block_size, counted), EXACT
    return None if rate is None else Bound(rate, method)


def tokenizer_of(session: aiohttp.ClientSession, url: str, target: Target) -> Tokenize:
    """vLLM's /tokenize at `url`, with the chat template applied as for a generation."""

    async def tokenize(messages: Sequence[Message]) -> list[int]:
        fields: dict[str, object] = {"model": target.model}
        if target.endpoint == "chat":
            fields |= {"messages": messages, "add_generation_prompt": True}
        else:
            fields["prompt"] = as_prompt(messages)
        return await _post_tokenize(session, url.rstrip("/") + "/tokenize", fields, target.headers)

    return tokenize


class _Tokens(msgspec.Struct):
    tokens: list[int]


async def _post_tokenize(
    session: aiohttp.ClientSession, url: str, fields: object, headers: Mapping[str, str]
) -> list[int]:
    body = msgspec.json.encode(fields)
    try:
        async with session.post(
            url, data=body, headers={"Content-Type": "application/json", **headers}
        ) as response:
            if response.status != 200:
                raise TokenizeUnavailable(f"{url}: status {response.status}")
            return msgspec.json.decode(await response.read(), type=_Tokens).tokens
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as exc:
        raise TokenizeUnavailable(f"{url}: {exc}") from exc


async def _tokenize_all(
    records: Sequence[Record],
    prompts: Mapping[int, Sequence[Message]],
    tokenize: Tokenize,
) -> dict[int, list[int]]:
    """Record number → ids. Where prompts only grow, a conversation's last one holds them all."""
    if not records:
        return {}
    sessions: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.turn):
        sessions.setdefault(record.session, []).append(record)
    longest = max(sessions.values(), key=len)
    # The longest first: it shows whether prompts grow, and whether there is a /tokenize at all.
    found = await _tokenize_each(longest, prompts, tokenize)
    if not _only_grows(longest, found):
        rest = [record for record in records if record.number not in found]
        return found | await _tokenize_each(rest, prompts, tokenize)
    others = [turns for turns in sessions.values() if turns is not longest]
    last = await _tokenize_each([turns[-1] for turns in others], prompts, tokenize)
    for turns in others:
        whole = last[turns[-1].number]
        found |= {record.number: whole[: record.prompt_tokens] for record in turns}
    return found


async def _tokenize_each(
    records: Sequence[Record], prompts: Mapping[int, Sequence[Message]], tokenize: Tokenize
) -> dict[int, list[int]]:
    gate = asyncio.Semaphore(TOKENIZE_AT_ONCE)

    async def one(record: Record) -> list[int]:
        async with gate:
            return await tokenize(prompts[record.number])

    tokens = await asyncio.gather(*(one(record) for record in records))
    return dict(zip((record.number for record in records), tokens, strict=True))


def _only_grows(turns: Sequence[Record], tokens: Mapping[int, Sequence[int]]) -> bool:
    """Each prompt starts the last one, and is as long as the engine said."""
    whole = list(tokens[turns[-1].number])
    return all(
        record.prompt_tokens == len(tokens[record.number])
        and list(tokens[record.number]) == whole[: record.prompt_tokens]
        for record in turns
    )


def _left_behind(before: Sequence[int], answer_tokens: int, prompt: Sequence[int]) -> int:
    """How many of `prompt`'s tokens the turn before had computed, at best.

    The ids of the answer are those that `prompt` now holds in its place. A template that changes
    what was said before leaves only what is still equal.
    """
    n = len(before)
    if list(prompt[:n]) == list(before):
        return n + max(0, answer_tokens - 1)
    return next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), n)


def _leading(prefix: Sequence[int], cached: set[int]) -> int:
    return next((i for i, block in enumerate(prefix) if block not in cached), len(prefix))
