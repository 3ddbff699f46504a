"""Where a tokenizer's added tokens ("<|im_end|>") cut a text, whatever else it does to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tokenizers import AddedToken, Tokenizer

from router.blocks import as_tokens

WINDOW_CHARS: Final = 32_768


def matches(pattern: re.Pattern[str], text: str, longest: int) -> Iterator[re.Match[str]]:
    """As `finditer`, but no search holds the GIL for more than a window of a long text.

    For a pattern whose matches follow from their own characters, of which `longest` is the most.
    """
    if len(text) <= WINDOW_CHARS:
        yield from pattern.finditer(text)
        return
    at = 0
    while at < len(text):
        end = at + WINDOW_CHARS
        found = pattern.search(text, at, end + longest)
        if found is None or found.start() >= end:
            at = end
        else:
            yield found
            at = found.end()


def boundary(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """A pattern that finds added tokens exactly where the tokenizer finds them; None: no cuts.

    Tokens that match on normalized text are looked for later, inside a piece. Those that look at
    their neighbours (`single_word`) or take the space before them (`lstrip`) reach across a cut.
    """
    early = _early_tokens(tokenizer)
    if not early or any(token.lstrip or token.single_word for token in early):
        return None
    cuts = _cut_tokens(early)
    if any(token.rstrip for token in early) and any(text[0].isspace() for text in cuts):
        return None
    return re.compile(longest_of(sorted(cuts)))


def _early_tokens(tokenizer: Tokenizer) -> list[AddedToken]:
    added = tokenizer.get_added_tokens_decoder().values()
    return [token for token in added if token.content and not token.normalized]


def _cut_tokens(early: list[AddedToken]) -> set[str]:
    """Special tokens; all tokens, if another kind could hide a special one by an overlap."""
    everything = {token.content for token in early}
    special = {token.content for token in early if token.special}
    others = everything - special
    if not special or any(_hides(other, text) for other in others for text in special):
        return everything
    return special


def _hides(other: str, text: str) -> bool:
    """Whether a match of `other` can begin before `text`, or at it and longer, and overlap it."""
    return other.startswith(text) or _reaches(other, text)


def _reaches(other: str, text: str) -> bool:
    """Whether a match of `other` can begin before `text` and end inside it or behind it."""
    tails = (other[at:] for at in range(1, len(other)))
    return any(text.startswith(tail) or tail.startswith(text) for tail in tails)


def heads(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Ids of added tokens that take nothing of the text behind them."""
    added = tokenizer.get_added_tokens_decoder().items()
    return {one.content: as_tokens([token]).tobytes() for token, one in added if not one.rstrip}


def longest(tokenizer: Tokenizer) -> int:
    """Characters of the longest added token."""
    added = tokenizer.get_added_tokens_decoder().values()
    return max((len(one.content) for one in added), default=0)


def openers(tokenizer: Tokenizer) -> frozenset[str]:
    """Tokens before which there is a cut wherever they stand: none reaches into their beginning."""
    early = _early_tokens(tokenizer)
    texts = [token.content for token in early]
    return frozenset(
        text for text in _cut_tokens(early) if not any(_reaches(other, text) for other in texts)
    )


def longest_of(words: list[str]) -> str:
    """A regex for the longest of the words that matches, as a trie: there may be hundreds."""
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(head) + longest_of(rest) for head, rest in tails.items()]
    if not branches:
        return ""
    if len(branches) == 1 and "" not in words:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if "" in words else "")
