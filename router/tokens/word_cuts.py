"""How a tokenizer cuts ASCII text into words before it looks any of them up.

Read from the tokenizer's own description. Its expressions are in Oniguruma's syntax, or in that of
Rust's `fancy-regex`, and about Unicode; for ASCII text they say the same in Python's `re` once
`\\p{…}` is spelt out. Whatever is not known to mean the same makes a tokenizer one whose words are
not followed (None).
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from router.tokens.automaton import NotFollowed, Table, can_match, table_of

BYTE_LEVEL: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What the library's ByteLevel cuts by, if it cuts at all."""

ASCII: Final = [chr(code) for code in range(128)]
NEVER: Final = "\x80"
"""Stands in classes that would be empty; no ASCII text holds it."""

_UNCHANGED: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_KINDS: Final = ({"behavior": "Isolated", "invert": False}, {"behavior": "Removed", "invert": True})

_SYNTAX: Final = re.compile(
    r"""
    (?P<property>\\[pP]\{[A-Z][a-z]?\})
  | (?P<escape>\\[rntsSdw]|\\[^A-Za-z0-9\s])
  | (?P<group>\(\?(?:i?:|!|=)|\)|\|)
  | (?P<repeat>[?*+]\+?|\{\d+(?:,\d*)?\}(?!\+))
  | (?P<open>\[\^?)
  | (?P<literal>[^\\()|?*+\[\]{}.^$])
    """,
    re.VERBOSE,
)
_IN_CLASS: Final = re.compile(
    r"(?P<property>\\[pP]\{[A-Z][a-z]?\})|(?P<same>\\[rntsSdw]|\\[^A-Za-z0-9\s]|[^\\\[\]])"
)
_SETS: Final = re.compile(r"--|&&|~~|\|\|")
"""Which Python may read otherwise one day, and Oniguruma does already."""


def word_cuts(tokenizer: Tokenizer) -> list[Table] | None:
    """The cuts, each made in the pieces of the one before: at a match's ends. None for a tokenizer
    that works in another way."""
    if not _leaves_ascii(_state(tokenizer.normalizer)):
        return None
    cutter = _state(tokenizer.pre_tokenizer)
    if cutter is None:
        return None
    steps = cutter["pretokenizers"] if cutter["type"] == "Sequence" else [cutter]
    *before, last = steps or [None]
    if last is None or last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    sources = [_source(step) for step in before]
    if last["use_regex"]:
        sources.append(BYTE_LEVEL)
    cuts = [None if source is None else word_cut(source) for source in sources]
    known = [cut for cut in cuts if cut is not None]
    if not known or len(known) < len(cuts):
        return None
    return [cut for cut in known if can_match(cut)] or None


def in_python(source: str) -> str | None:
    """The expression as `re` reads it, for ASCII text; None if that is not sure."""
    made, at = [], 0
    while at < len(source):
        found = _SYNTAX.match(source, at)
        if found is None:
            return None
        at = found.end()
        if found.lastgroup == "property":
            made.append(f"[{_spelt(found[0])}]")
        elif found.lastgroup == "open":
            body, at = _class(source, at)
            if body is None:
                return None
            made.append(f"{found[0]}{body}]")
        else:
            made.append(found[0])
    return "".join(made)


def _class(source: str, at: int) -> tuple[str | None, int]:
    made: list[str] = []
    while found := _IN_CLASS.match(source, at):
        at = found.end()
        made.append(_spelt(found[0]) if found.lastgroup == "property" else found[0])
    body = "".join(made)
    is_whole = source.startswith("]", at) and body and not _SETS.search(body)
    return (body if is_whole else None), at + 1


def _spelt(asked: str) -> str:
    """The ASCII characters of a Unicode category, for the inside of a class."""
    wanted, category = asked[1] == "p", asked[3:-1]
    held = [c for c in ASCII if unicodedata.category(c).startswith(category) is wanted]
    return "".join(map(re.escape, held)) + NEVER


def _state(part: Any) -> dict[str, Any] | None:
    """A part of a tokenizer as its file describes it."""
    return None if part is None else msgspec.json.decode(part.__getstate__())


def _leaves_ascii(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None:
        return True
    if normalizer["type"] == "Sequence":
        return all(map(_leaves_ascii, normalizer["normalizers"]))
    return normalizer["type"] in _UNCHANGED


def _source(step: dict[str, Any]) -> str | None:
    if step["type"] == "Digits":
        return r"\p{N}" if step["individual_digits"] else r"\p{N}+"
    if step["type"] != "Split" or not isinstance(step["pattern"], dict):
        return None
    kind = {"behavior": step["behavior"], "invert": step["invert"]}
    source: str | None = step["pattern"].get("Regex")
    return source if kind in _KINDS else None


def word_cut(source: str) -> Table | None:
    """The cut that an expression makes; None if its meaning is not sure."""
    spelt = in_python(source)
    try:
        return None if spelt is None else table_of(spelt)
    except NotFollowed:
        return None
