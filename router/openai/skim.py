"""Bodies of megabytes are mostly one image: its text is passed over, not parsed.

A JSON string ends at the first quote that is not escaped, so its end can be found at the speed of
memory, without looking at what it says. What such a string says is the engine's to judge.
"""

from __future__ import annotations

from typing import Final

SKIM_BYTES: Final = 4 * 1024 * 1024
"""Shorter bodies are parsed whole, in 2 ms at the most."""

LONG_BYTES: Final = 256 * 1024
"""A string that is not longer stays."""

MOST_STRINGS: Final = 4096
"""A body with more of them before its last long one is parsed whole: looking for their ends would
cost more than that."""

_OPENING: Final = b'"data:'
_QUOTE, _ESCAPE = b'"', ord("\\")


def without_data(body: bytes) -> bytes | None:
    """The same JSON with nothing in its long `data:` strings; None if it has none that is found.

    Of a text that is no JSON it makes one that is none either, but for what was in those strings.
    """
    if len(body) < SKIM_BYTES or _OPENING not in body:
        return None
    kept: list[bytes] = []
    start = at = 0
    for _ in range(MOST_STRINGS):
        opened = body.find(_QUOTE, at)
        closed = _end(body, opened + 1) if opened >= 0 else -1
        if closed < 0:
            break
        if closed - opened > LONG_BYTES and body.startswith(_OPENING, opened):
            kept.append(body[start : opened + len(_OPENING)])
            start = closed
        at = closed + 1
    if not kept:
        return None
    return b"".join([*kept, body[start:]])


def _end(body: bytes, at: int) -> int:
    """Where the quote is that ends a string, -1: nowhere. `at`: behind the one that opens it."""
    while (end := body.find(_QUOTE, at)) >= 0:
        first = end
        while first > at and body[first - 1] == _ESCAPE:
            first -= 1
        if (end - first) % 2 == 0:
            return end
        at = end + 1
    return -1
