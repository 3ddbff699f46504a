"""A regular expression as a table: from each state, what the next character of ASCII text makes it.

The table finds what a backtracking search finds, alternatives and repetitions in their order, in
one pass and without going back. A state is the list of places in the expression where a search may
be, the preferred ones first (Pike's algorithm, all of whose lists are made beforehand). Looking
one character ahead costs nothing: a match is noted when the character behind it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[np.uint16]
"""`table[WIDTH * state + character]` is twice the next state, and 1 more if there is a match before
that character."""

END: Final = 128
"""Stands for the end of the text, behind the ASCII characters."""
WIDTH: Final = END + 1
DEAD: Final = 0
START: Final = 1

MAX_PLACES: Final = 2_000
MAX_STATES: Final = 1_000

_ALL: Final = (1 << WIDTH) - 1
_SYNTAX: Final = re.compile(
    r"""
    (?P<atom>\\[rntsSdw]|\\[^A-Za-z0-9]|\[\^?(?:\\.|[^\]\\])*\]|[^\\()|?*+\[\]{}.^$])
  | \(\?(?P<group>i?:|!|=)
  | (?P<close>\))
  | (?P<bar>\|)
  | (?P<repeat>[?*+]|\{\d+(?:,\d*)?\})(?P<kind>[+?]?)
    """,
    re.VERBOSE | re.DOTALL,
)


class NotFollowed(ValueError):
    """The expression has something that is not known here, or its table would be large."""


class _Place(NamedTuple):
    """A place in the expression. `then`: where a search goes on, the preferred one first; nowhere
    behind a match.

    `on`: characters, as bits; None for a place that takes none. `is_look`: it looks at the
    character and does not go past it.
    """

    then: tuple[int, ...]
    on: int | None = None
    is_look: bool = False


class _Part(NamedTuple):
    """`write` puts a part of the expression before a place and returns where it begins.

    `can_be_empty`: it may match without taking a character. `on`: of one that is one character.
    """

    write: Callable[[int], int]
    can_be_empty: bool
    on: int | None = None


@lru_cache(maxsize=64)
def table_of(source: str) -> Table:
    """An expression in Python's syntax, for text that is all ASCII. Raises NotFollowed."""
    places, first = _Reader(source).read()
    numbers: dict[tuple[int, ...], int] = {(): DEAD, (first,): START}
    states, rows = [*numbers], []
    for state in states:  # which grow meanwhile
        for character in range(WIDTH):
            after, is_match = _step(places, state, character)
            if after not in numbers:
                numbers[after] = len(states)
                states.append(after)
            rows.append(2 * numbers[after] + is_match)
        if len(states) > MAX_STATES:
            raise NotFollowed("its table would be large")
    table = np.array(rows, np.uint16)
    if (table[WIDTH * START : WIDTH * START + WIDTH] & 1).any():
        raise NotFollowed("it matches where nothing is")
    table.flags.writeable = False
    return table


def can_match(table: Table) -> bool:
    """Whether there is ASCII text that it matches."""
    return bool((table & 1).any())


def begins_anew(table: Table, ending: str, next_characters: str) -> bool:
    """Whether a match ends wherever, behind that ending, one of those characters comes next."""
    rows = table.reshape(-1, WIDTH)
    reached = {START}
    waiting = [START]
    while waiting:
        for state in set((rows[waiting.pop(), :END] >> 1).tolist()) - reached - {DEAD}:
            reached.add(state)
            waiting.append(state)
    for character in ending:  # a match may also begin within the ending
        reached = {int(rows[state, ord(character)] >> 1) for state in reached} - {DEAD} | {START}
    behind = rows[sorted(reached - {START})][:, [ord(one) for one in next_characters]]
    return bool((behind == 2 * DEAD + 1).all())


def _step(
    places: Sequence[_Place], state: Sequence[int], character: int
) -> tuple[tuple[int, ...], bool]:
    """Where a search may be behind the character, and whether there is a match before it."""
    after: dict[int, None] = {}
    seen: set[int] = set()
    waiting = [*reversed(state)]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        then, on, is_look = places[at]
        if not then:
            return tuple(after), True  # what is less preferred has no say any more
        if on is None:
            waiting += reversed(then)
        elif on >> character & 1:
            if is_look:
                waiting += then
            elif character != END:
                after[then[0]] = None
    return tuple(after), False


class _Reader:
    """Reads one expression, once."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._places: list[_Place] = []

    def read(self) -> tuple[list[_Place], int]:
        """All places, and the first one."""
        whole = self._either(ignores_case=False)
        if self._at < len(self._source):
            raise NotFollowed("a parenthesis too many")
        return self._places, whole.write(self._add(_Place(())))

    def _add(self, place: _Place) -> int:
        if len(self._places) >= MAX_PLACES:
            raise NotFollowed("it is long")
        self._places.append(place)
        return len(self._places) - 1

    def _next(self) -> re.Match[str]:
        found = _SYNTAX.match(self._source, self._at)
        if found is None:
            raise NotFollowed("syntax that is not known here")
        self._at = found.end()
        return found

    def _either(self, *, ignores_case: bool) -> _Part:
        """Alternatives, up to the end of their group, which is passed."""
        branches: list[list[_Part]] = [[]]
        while self._at < len(self._source):
            found = self._next()
            if found["close"]:
                self._at -= 1
                break
            if found["bar"]:
                branches.append([])
            else:
                self._read_part(found, branches[-1], ignores_case=ignores_case)
        parts = list(map(_in_a_row, branches))
        if len(parts) == 1:
            return parts[0]

        def write(then: int) -> int:
            return self._add(_Place(tuple([part.write(then) for part in parts])))

        return _Part(write, any(part.can_be_empty for part in parts))

    def _read_part(self, found: re.Match[str], before: list[_Part], *, ignores_case: bool) -> None:
        if found["repeat"]:
            if not before:
                raise NotFollowed("nothing to repeat")
            before.append(self._repeated(before.pop(), found))
        elif found["atom"]:
            before.append(self._one(_held(found["atom"], ignores_case)))
        else:
            before.append(self._group(found["group"], ignores_case=ignores_case))

    def _group(self, kind: str, *, ignores_case: bool) -> _Part:
        inside = self._either(ignores_case=ignores_case or kind == "i:")
        if self._at == len(self._source):
            raise NotFollowed("a parenthesis that is not closed")
        self._at += 1
        if kind in ("i:", ":"):
            return inside
        if inside.on is None:
            raise NotFollowed("it looks further ahead than one character")
        on = inside.on if kind == "=" else _ALL & ~inside.on
        return _Part(lambda then: self._add(_Place((then,), on, is_look=True)), True)

    def _one(self, on: int) -> _Part:
        return _Part(lambda then: self._add(_Place((then,), on)), False, on)

    def _repeated(self, part: _Part, found: re.Match[str]) -> _Part:
        least, most = _times(found["repeat"])
        if part.can_be_empty or found["kind"] == "+":
            raise NotFollowed("a repetition of nothing, or one that gives nothing back")
        is_lazy = found["kind"] == "?"

        def choice(inside: int, then: int) -> tuple[int, ...]:
            return (then, inside) if is_lazy else (inside, then)

        def write(then: int) -> int:
            first = then
            if most is None:
                first = self._add(_Place((then,)))
                self._places[first] = _Place(choice(part.write(first), then))
            for _ in range((most or least) - least):
                first = self._add(_Place(choice(part.write(first), then)))
            for _ in range(least):
                first = part.write(first)
            return first

        return _Part(write, least == 0)


def _in_a_row(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]

    def write(then: int) -> int:
        for part in reversed(parts):
            then = part.write(then)
        return then

    return _Part(write, all(part.can_be_empty for part in parts))


def _times(repeat: str) -> tuple[int, int | None]:
    if repeat in ("?", "*", "+"):
        return int(repeat == "+"), 1 if repeat == "?" else None
    least, comma, most = repeat[1:-1].partition(",")
    times = int(least), int(most) if most else None if comma else int(least)
    if max(times[0], times[1] or 0) > MAX_PLACES or times[1] == 0:
        raise NotFollowed("a number that makes no sense")
    return times


def _held(atom: str, ignores_case: bool) -> int:
    """The ASCII characters that one stands for, as bits: `re` knows."""
    flags = re.ASCII | re.IGNORECASE if ignores_case else re.ASCII
    try:
        pattern = re.compile(atom, flags)
    except re.error as exc:
        raise NotFollowed("no class of characters") from exc
    if pattern.match("") or pattern.groups:
        raise NotFollowed("no character")
    return sum(1 << code for code in range(END) if pattern.fullmatch(chr(code)))
