"""A loop's turns, and what stands for each in keys: its message, places, neighbours, namespaces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count, islice
from operator import is_, itemgetter
from typing import Any, Final, TypeAlias

from jinja2.utils import Namespace

from router.tokens.loop_places import LENGTH, Outer
from router.tokens.loop_shape import LoopShape
from router.tokens.passages import Columns, Key
from router.tokens.told import Heard

MAX_GRIDS: Final = 256
MAX_GRID_TURNS: Final = 1024
MAX_FLAGS: Final = 4096
NOTHING: Final = object()
"""Stands for what is undefined."""

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
        """A number per turn for its row of columns; what takes the neighbours out of a list.

        A place that isn't in the list is the one behind its end, which is taken first.
        """
        key = (turns, *map(scalar, outer.values()))
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
        places: list[Take] = []
        for neighbour in self.shape.neighbours:
            size = outer[neighbour.name, LENGTH] if neighbour.name else turns
            at = neighbour.places.compute(turns, outer)
            # two of them at least, so that a tuple comes out
            places.append(itemgetter(size, *[_place(one, size) for one in at]))
        return flags, places


Take: TypeAlias = Callable[[Sequence[int | None]], tuple[int | None, ...]]
Grid: TypeAlias = tuple[list[int], list[Take]]


def _place(at: int | None, size: int) -> int:
    return size if at is None or not -size <= at < size else at % size


SCALARS: Final = frozenset({str, int, bool, type(None)})


def scalar(value: Any) -> Hashable:
    """True and 1 are equal to Python, and not to a template."""
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if type(value) not in SCALARS:
        raise Unsure
    known: str | int | None = value
    return known


def stable(values: Iterable[Any]) -> Key:
    return tuple([NOTHING if one is NOTHING else scalar(one) for one in values])


class Numbers:
    """Numbers of messages, which stand for them in keys."""

    def __init__(self, heard: Heard[Any]) -> None:
        self._heard = heard
        self._by_id: dict[int, int] | None = None

    def of(self, items: list[Any]) -> list[int]:
        """Of each item, all of which are messages. LookupError: one isn't."""
        messages, numbers = self._heard.messages, self._heard.numbers
        if items is messages:
            return numbers
        start = len(messages) - len(items)
        if start >= 0 and all(map(is_, items, islice(messages, start, None))):
            return numbers[start:]
        return list(map(self._index().__getitem__, map(id, items)))

    def of_one(self, value: Any) -> int | None:
        return self._index().get(id(value))

    def _index(self) -> dict[int, int]:
        if self._by_id is None:
            heard = self._heard
            self._by_id = dict(zip(map(id, heard.messages), heard.numbers, strict=True))
        return self._by_id


class Turns:
    """A loop over messages that are all known, before its first turn."""

    def __init__(self, loop: Loop, items: Any, values: Sequence[Any], numbers: Numbers) -> None:
        if type(items) is not list or not items:
            raise Unsure
        self.loop = loop
        self.values = dict(zip(loop.shape.names, values, strict=True))
        self._items = items
        self._numbers = numbers
        self._messages = numbers.of(items)
        if loop.shape.changed:
            spaces = [id(value) for value in values if type(value) is Namespace]
            if len(set(spaces)) != len(spaces):  # a change of one would be a change of the other
                raise Unsure

    def columns(self) -> Columns:
        """For each turn its message, what the body asks of places, and its neighbours."""
        if not self.loop.shape.columns and not self.loop.shape.neighbours:
            return [self._messages]
        outer = {asked: self._scalar(*asked) for asked in self.loop.outer}
        flags, places = self.loop.grid(len(self._items), outer)
        names = [neighbour.name for neighbour in self.loop.shape.neighbours]
        found = [
            taken(self._numbers_of(name))[1:] for name, taken in zip(names, places, strict=True)
        ]
        return [self._messages, flags, *found]

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
        scalar(value)
        return value

    def _numbers_of(self, name: str) -> list[int | None]:
        """Of a list's items; then None, for places beyond its ends."""
        value = self.values[name] if name else self._items
        if value is self._items:
            return [*self._messages, None]
        return [*self._numbers.of(value), None]
