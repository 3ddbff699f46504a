"""How many tokens the target's tokenizer makes of a word; and whether the target answers at all."""

from __future__ import annotations

from typing import Final

from loadgen.client import Client, Exchange
from loadgen.record import OK
from loadgen.text import Prose
from loadgen.workload.protocol import Message

PROBE_WORDS: Final = (100, 500)
UNKNOWN: Final = 1.0


class TargetError(Exception):
    """The target cannot be measured: it doesn't answer as an OpenAI-compatible server."""


async def tokens_per_word(client: Client, seed: int) -> float:
    """Slope between two prompts, so that the chat template's own tokens don't count.

    1.0 when the server reports no usage. TargetError when it gives no answer.
    """
    prose = Prose(seed)
    counts = []
    for words in PROBE_WORDS:
        messages = (Message("user", prose.passage(f"probe {words}", words)),)
        exchange = await client.send(client.target.body(messages, 1), {})
        counts.append(_prompt_tokens(client, exchange))
    few, many = counts
    if few is None or many is None or many <= few:
        return UNKNOWN
    return round((many - few) / (PROBE_WORDS[1] - PROBE_WORDS[0]), 4)


def _prompt_tokens(client: Client, exchange: Exchange) -> int | None:
    # One token may have no text: an empty answer is fine here.
    if exchange.outcome not in (OK, "empty"):
        status = f" {exchange.status}" if exchange.status else ""
        raise TargetError(
            f"{client.target.url}{client.target.path}: {exchange.outcome}{status}: {exchange.error}"
        )
    usage = exchange.reply.usage
    return None if usage is None else usage.prompt_tokens
