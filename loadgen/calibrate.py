"""How many tokens the target's tokenizer makes of a word; and whether the target answers at all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from loadgen.client import Client, Exchange
from loadgen.record import OK
from loadgen.text import Prose, load_vocabulary
from loadgen.workload.protocol import Message

PROBE_WORDS: Final = (100, 500)
UNKNOWN: Final = 1.0
MIN_WORDS: Final = 200


class TargetError(Exception):
    """The target cannot be measured: it doesn't answer as an OpenAI-compatible server."""


def single_token_words(path: Path) -> tuple[str, ...]:
    """The words that are one token after a space: with them, n words are n tokens exactly.

    `path` is a tokenizer.json or the folder it is in. TargetError when it cannot be read, or too
    few words are left.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as exc:
        raise TargetError(f"{file}: {exc}") from exc
    words = load_vocabulary()
    codes = tokenizer.encode_batch([f"{word} {word} {word}" for word in words], False)
    once = tokenizer.encode_batch([f"{word} {word}" for word in words], False)
    pairs = zip(words, codes, once, strict=True)
    found = tuple(word for word, three, two in pairs if len(three.ids) - len(two.ids) == 1)
    if len(found) < MIN_WORDS:
        raise TargetError(f"{file}: only {len(found)} common words are one token")
    return found


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
