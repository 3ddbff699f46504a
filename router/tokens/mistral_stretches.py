"""A conversation in stretches whose layouts don't depend on each other.

mistral-common joins neighbours of one role, sorts results by the calls before them, counts calls
against results, and writes tools, settings and systems into the first or the last user's message.
None of these reaches across two places, once a user has spoken: before a user that follows an
answer without calls, and behind results of all calls. What a stretch becomes follows from its
messages and from whether the first user, the last one, and the end are in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, Final, Self

from msgspec import Struct

USER: Final = "user"
ASSISTANT: Final = "assistant"
TOOL: Final = "tool"
SYSTEMS: Final = ("system", "developer")

ASK: Final = {"role": USER, "content": "a"}
_CALL: Final = {"id": "a" * 9, "type": "function", "function": {"name": "a", "arguments": {}}}
LEADS: Final[dict[str, list[dict[str, Any]]]] = {
    USER: [ASK, {"role": ASSISTANT, "content": "a"}],
    ASSISTANT: [
        ASK,
        {"role": ASSISTANT, "content": "", "tool_calls": [_CALL]},
        {"role": TOOL, "tool_call_id": _CALL["id"], "content": "a"},
    ],
}
"""What is laid out before a stretch that is not the first, by the role that it begins with: so that
it is not taken for the first, and may begin so. It closes as a stretch does."""


class Said(Struct, gc=False):
    """A message as the library gets it.

    `calls`: how many it makes. `is_plain`: its content goes into the prompt as it is.
    """

    role: Any
    message: dict[str, Any]
    calls: int
    is_plain: bool

    @classmethod
    def of(cls, message: dict[str, Any]) -> Self:
        role, content = message.get("role"), message.get("content")
        text = content if isinstance(content, str) else ""
        if role != ASSISTANT:
            return cls(role, message, 0, text != "" and role in (USER, *SYSTEMS))
        calls = len(message["tool_calls"])
        has_more = calls > 0 or message.get("reasoning") is not None
        # spaces at its end would go
        return cls(role, message, calls, text != "" and not has_more and text[-1] != " ")


def closes(roles: Sequence[Any]) -> int:
    """How many tokens close something in the layout of a stretch, the last of which ends it: one
    behind all that an assistant says in a row, one behind each result."""
    return sum(
        len([*run]) if role == TOOL else 1
        for role, run in groupby(roles)
        if role in (ASSISTANT, TOOL)
    )


def cuts_of(said: Sequence[Said], known: Sequence[int] = ()) -> list[int]:
    """Where stretches begin, but the first. `known`: cuts of what these messages begin with."""
    if not known:
        first_user = next((at for at, one in enumerate(said) if one.role == USER), len(said))
        return [*_cuts(said, 0, first_user)]
    # what is said before a cut has no say in where the next one is
    return [*known, *_cuts(said, known[-1], known[-1])]


def _cuts(said: Sequence[Said], start: int, first_user: int) -> Iterator[int]:
    before, calls, results = None, 0, 0
    for at in range(start, len(said)):
        one = said[at]
        role = one.role
        is_answered = before == ASSISTANT and role == USER and not calls
        has_results = before == TOOL and role in (USER, ASSISTANT) and results == calls
        if at > first_user and (is_answered or has_results):
            yield at
        if role == ASSISTANT:
            calls, results = one.calls, 0
        elif role == TOOL:
            results += 1
        before = role


def split_at(
    tokens: Sequence[int], closers: frozenset[int], counts: Sequence[int]
) -> list[Sequence[int]]:
    """Cut behind as many of those tokens as each count says; then comes the rest.

    IndexError: there are fewer.
    """
    ends = [at + 1 for at, token in enumerate(tokens) if token in closers]
    cuts, seen = [0], 0
    for count in counts:
        seen += count
        cuts.append(ends[seen - 1])
    return [*(tokens[a:b] for a, b in pairwise(cuts)), tokens[cuts[-1] :]]
