"""A chat template's loops, replayed as far as they are remembered.

A conversation's next turn repeats its beginning. A loop over messages (`loop_shape`) is replayed
up to the first turn that isn't known; from there the template runs as always, and what it says is
remembered. A turn's key is all that the turn can depend on.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
from jinja2 import Undefined
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace
from xxhash import xxh3_128_digest

from router.tokens.loop_places import LENGTH, Outer
from router.tokens.loop_shape import LoopShape
from router.tokens.passages import Key, Part, Passage, Passages

UNSURE: Final = (TypeError, ArithmeticError, LookupError, AttributeError)
"""What computing a key can raise when a template does what was not foreseen: it runs as always."""

MAX_GRIDS: Final = 256
MAX_GRID_TURNS: Final = 1024
MAX_FLAGS: Final = 4096
NOTHING: Final = object()
"""Stands for what is undefined."""

_text = attrgetter("text")

_TRUE: Final = ("true",)
_FALSE: Final = ("false",)


class Unsure(TypeError):
    """A value that no key can stand for."""


class Loop:
    """A loop that can be remembered, and what its turns ask of places, which follows from little.

    `grid` may run in any thread: what two of them compute at once is equal.
    """

    def __init__(self, shape: LoopShape) -> None:
        self.shape = shape
        self.outer = shape.outer
        self.settings = [
            (name, sorted(use for use in shape.uses[name] if use), None in shape.uses[name])
            for name in shape.names
            if shape.uses[name] or any(name == changed for changed, _ in shape.changed)
        ]
        self._grids: dict[Key, Grid] = {}
        self._flags: dict[Key, int] = {}
        self._numbers = count(1)  # never used again: what is remembered holds them

    def grid(self, turns: int, outer: Mapping[Outer, Any]) -> Grid:
        """A number per turn for its row of columns, and the neighbours' places.

        A place that isn't in the list is the one behind its end.
        """
        key = (turns, *map(_scalar, outer.values()))
        found = self._grids.get(key)
        if found is None:
            found = self._compute(turns, outer)
            if len(self._grids) >= MAX_GRIDS:
                self._grids.clear()
            if turns <= MAX_GRID_TURNS:
                self._grids[key] = found
        return found

    def _compute(self, turns: int, outer: Mapping[Outer, Any]) -> Grid:
        columns = [column.compute(turns, outer) for column in self.shape.columns]
        rows = zip(*columns, strict=True) if columns else [()] * turns
        if len(self._flags) > MAX_FLAGS:
            self._flags.clear()
        known, numbers = self._flags, self._numbers
        flags = [known.get(row) or known.setdefault(row, next(numbers)) for row in rows]
        places = []
        for neighbour in self.shape.neighbours:
            size = outer[neighbour.name, LENGTH] if neighbour.name else turns
            at = neighbour.places.compute(turns, outer)
            places.append([_place(one, size) for one in at])
        return flags, places


Grid: TypeAlias = tuple[list[int], list[list[int]]]


def _place(at: int | None, size: int) -> int:
    return size if at is None or not -size <= at < size else at % size


@dataclass(frozen=True, slots=True)
class Loops:
    """A template's loops that can be remembered, and the `id`s of its environment's functions."""

    loops: Sequence[Loop]
    functions: Collection[int]


class Replay:
    """One rendering. `parts`: what the template has put out; passages stand for their texts."""

    def __init__(
        self, loops: Loops, memo: Passages, numbers: Mapping[int, int], tools: Any
    ) -> None:
        self.parts: list[Part] = []
        self.chars = 0
        """Of the passages in `parts`."""
        self._memo = memo
        self._numbers = numbers
        self._tools = tools
        self._loops = loops
        self._recording: _Recording | None = None

    def enter(self, number: int, items: Any, values: Sequence[Any]) -> Any:
        """Say what is remembered of a loop. Returns the items, or pairs, that are left to run."""
        loop = self._loops.loops[number]
        shape = loop.shape
        self._recording = None
        try:
            turns = _Turns(loop, items, values, self._numbers)
            settings = self._memo.number_of((number, *self._settings(turns)))
            rows = turns.rows()
            state = turns.state()
        except UNSURE:
            return _from(items, 0, shape)
        found = self._memo.recall(settings, state, rows)
        self.chars += sum(map(len, map(_text, found)))
        self.parts += found
        if found:
            turns.restore(found[-1].after)
        self._recording = _Recording(turns, settings, rows[len(found) :])
        return _from(items, len(found), shape)

    def turn(self) -> None:
        """A turn begins that isn't remembered."""
        if self._recording is not None:
            self._recording.mark(len(self.parts))

    def end(self) -> None:
        """The loop is over."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.mark(len(self.parts))
            recording.remember(self.parts, self._memo)

    def _settings(self, turns: _Turns) -> Iterable[Hashable]:
        for name, attributes, is_whole in turns.loop.settings:
            value = turns.values[name]
            if type(value) is not Namespace:
                yield self._stable(value)
                continue
            if is_whole:
                raise Unsure
            for attribute in attributes:
                yield self._stable(getattr(value, attribute, NOTHING))

    def _stable(self, value: Any) -> Hashable:
        """Stands for a value exactly: equal only if templates cannot tell the values apart."""
        if value is NOTHING or isinstance(value, Undefined):
            return NOTHING
        if type(value) in _SCALARS:
            return _scalar(value)
        if id(value) in self._numbers:
            return "message", self._numbers[id(value)]
        if value is self._tools:
            return "tools", xxh3_128_digest(msgspec.json.encode(value))
        if id(value) in self._loops.functions:
            return "function", id(value)
        raise Unsure


_SCALARS: Final = frozenset({str, int, bool, type(None)})


def _scalar(value: Any) -> Hashable:
    """True and 1 are equal to Python, and not to a template."""
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if type(value) not in _SCALARS:
        raise Unsure
    known: str | int | None = value
    return known


def stable(values: Iterable[Any]) -> Key:
    return tuple([NOTHING if one is NOTHING else _scalar(one) for one in values])


def _from(items: Any, at: int, shape: LoopShape) -> Any:
    """The loop's rest, with `loop` as Jinja would have it there."""
    if not shape.reads_loop:
        return items[at:] if at else items
    loop = LoopContext(items, Undefined)
    if at:
        loop.index0 = at - 1
        loop._iterator = iter(items[at:])
        loop._current = items[at - 1]
    return loop


class _Turns:
    """A loop over messages that are all known, before its first turn."""

    def __init__(
        self, loop: Loop, items: Any, values: Sequence[Any], numbers: Mapping[int, int]
    ) -> None:
        if type(items) is not list or not items:
            raise Unsure
        self.loop = loop
        self.values = dict(zip(loop.shape.names, values, strict=True))
        self._items = items
        self._numbers = numbers
        self._messages = list(map(numbers.__getitem__, map(id, items)))
        if loop.shape.changed:
            spaces = [id(value) for value in values if type(value) is Namespace]
            if len(set(spaces)) != len(spaces):  # a change of one would be a change of the other
                raise Unsure

    def rows(self) -> list[Key]:
        """A key for each turn: its message, what the body asks of places, its neighbours."""
        if not self.loop.shape.columns and not self.loop.shape.neighbours:
            return list(zip(self._messages, strict=True))
        outer = {asked: self._scalar(*asked) for asked in self.loop.outer}
        flags, places = self.loop.grid(len(self._items), outer)
        names = (neighbour.name for neighbour in self.loop.shape.neighbours)
        found = [
            map(self._numbers_of(name).__getitem__, at)
            for name, at in zip(names, places, strict=True)
        ]
        return list(zip(self._messages, flags, *found, strict=True))

    def state(self) -> Key:
        return stable(self.state_values())

    def state_values(self) -> list[Any]:
        return [
            getattr(self.values[name], attribute, NOTHING) if self._is_space(name) else NOTHING
            for name, attribute in self.loop.shape.changed
        ]

    def restore(self, after: Sequence[Any]) -> None:
        for (name, attribute), value in zip(self.loop.shape.changed, after, strict=True):
            if value is not NOTHING:
                self.values[name][attribute] = value

    def _is_space(self, name: str) -> bool:
        return type(self.values[name]) is Namespace

    def _scalar(self, name: str, attribute: str | None) -> Any:
        value = self.values[name]
        if attribute == LENGTH:
            if type(value) is not list:
                raise Unsure
            return len(value)
        if attribute is not None:
            if not self._is_space(name):
                raise Unsure
            value = getattr(value, attribute)
        _scalar(value)
        return value

    def _numbers_of(self, name: str) -> list[int | None]:
        """Of a list's items; then None, for places beyond its ends."""
        value = self.values[name] if name else self._items
        if value is self._items:
            return [*self._messages, None]
        return [*(self._numbers[id(item)] for item in value), None]


class _Recording:
    """Turns that run now: where each begins, and what the namespaces hold there."""

    def __init__(self, turns: _Turns, settings: int, rows: Sequence[Key]) -> None:
        self._turns = turns
        self._settings = settings
        self._rows = rows
        self._marks: list[tuple[int, list[Any]]] = []

    def mark(self, at: int) -> None:
        self._marks.append((at, self._turns.state_values()))

    def remember(self, parts: Sequence[Part], memo: Passages) -> None:
        """Up to the first turn behind which a namespace holds what no key can stand for."""
        try:
            states = [stable(values) for _, values in self._marks]
        except Unsure:
            return
        for at, row in enumerate(self._rows):
            start, (end, after) = self._marks[at][0], self._marks[at + 1]
            text = "".join([part for part in parts[start:end] if isinstance(part, str)])
            memo.remember(self._settings, states[at], row, Passage(text, after, states[at + 1]))
