"""The Responses API: answers that an engine keeps, and asks that go on from one."""

from __future__ import annotations

import re
from typing import Final

from router.openai.fields import flag, text
from router.openai.generation import Generation

MAX_ID_CHARACTERS: Final = 256
"""Engines' own ids have 37; one that a client has made up may be longer, but not for ever."""

PATH_END: Final = "/responses"

# In an answer and in the first event of a stream, the response's own id comes before any other.
_ID = re.compile(rb'"id"\s*:\s*"([!#-\[\]-~]{1,256})"')


def is_response(generation: Generation) -> bool:
    """Whether the answer is one that its engine may keep."""
    if not generation.path.partition("?")[0].rstrip("/").endswith(PATH_END):
        return False
    return flag(generation.fields.store) is not False


def find_response_id(start: bytes) -> str | None:
    """The id in the beginning of an answer's body, or of its events."""
    match = _ID.search(start)
    return None if match is None else match[1].decode("ascii")


def previous_response(generation: Generation) -> str | None:
    """The id of the answer that this goes on from. Only the engine that keeps it can."""
    found = text(generation.fields.previous_response_id)
    return found if found is not None and len(found) <= MAX_ID_CHARACTERS else None
