"""What a loop's body asks about places, computed for all turns at once.

`loop.index0 > ns.last_query_index` is one column of booleans, `messages[loop.index0 - 1]` one of
places in a list. They follow from few numbers, so a loop's columns are mostly remembered too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from jinja2 import nodes

LOOP: Final = "loop"
LENGTH: Final = "|length"
"""In the place of an attribute: how many items a list has."""

Outer: TypeAlias = tuple[str, str | None]
"""A scalar from outside the loop: a name, and an attribute, LENGTH, or None for the name itself."""

Compute: TypeAlias = Callable[[int, Mapping[Outer, Any]], Sequence[Any]]
"""From the number of turns and the scalars of `Column.reads`, a value per turn."""


@dataclass(frozen=True, slots=True)
class Column:
    """`compute` gives a value per turn, all of one type. `reads`: scalars from outside.

    `is_placed`: it depends on the turn at all. `is_flag`, `is_number`: its values are all booleans,
    all integers. `moves`: it is a number counted from the end, which every new message changes.
    """

    compute: Compute
    reads: frozenset[Outer] = frozenset()
    is_placed: bool = True
    is_flag: bool = False
    is_number: bool = False
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Items of the list `name` ("": the loop's own) that the body finds by their places.

    `places`: an index per turn, as the template computes it; None where the body reads none.
    """

    name: str
    places: Column


_PLACES: Final[dict[str, Callable[[int], Sequence[Any]]]] = {
    "index0": lambda count: range(count),
    "index": lambda count: range(1, count + 1),
    "revindex0": lambda count: range(count - 1, -1, -1),
    "revindex": lambda count: range(count, 0, -1),
    "length": lambda count: [count] * count,
    "first": lambda count: [True, *[False] * (count - 1)],
    "last": lambda count: [*[False] * (count - 1), True],
}
_FLAGS: Final = frozenset({"first", "last"})
_FROM_THE_END: Final = frozenset({"revindex0", "revindex", "length"})

_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
}
_COUNTED: Final[dict[type[nodes.Node], Callable[[Any, Any], Any]]] = {
    nodes.Add: operator.add,
    nodes.Sub: operator.sub,
    nodes.Mod: operator.mod,
}
_CHOSEN: Final[dict[type[nodes.Node], Callable[[Any, Any], Any]]] = {
    nodes.And: lambda left, right: left and right,
    nodes.Or: lambda left, right: left or right,
}


class Places:
    """Reads expressions about places. `local`: names that the loop's body sets, and its target.
    `changed`: attributes of namespaces that it sets."""

    def __init__(self, local: Collection[str], changed: Collection[tuple[str, str]] = ()) -> None:
        self._local = local
        self._changed = changed

    def column(self, node: nodes.Node) -> Column | None:
        """None for an expression that reads anything else, or no place at all."""
        column = self._column(node)
        return column if column is not None and column.is_placed else None

    def neighbour(self, node: nodes.Node) -> Neighbour | None:
        """None for an expression that is no message found by its place."""
        if isinstance(node, nodes.Getattr) and _is_loop(node.node):
            step = {"previtem": -1, "nextitem": 1}.get(node.attr)
            return None if step is None else Neighbour("", Column(_further_on(step)))
        if not isinstance(node, nodes.Getitem) or not isinstance(node.node, nodes.Name):
            return None
        at = self._column(node.arg)
        if node.node.name in self._local or at is None or not at.is_number or at.moves:
            return None
        size = frozenset({(node.node.name, LENGTH)})
        return Neighbour(node.node.name, replace(at, reads=at.reads | size))

    def _column(self, node: nodes.Node) -> Column | None:
        if isinstance(node, nodes.Const):
            return _constant(node.value)
        if isinstance(node, nodes.Getattr):
            return self._attribute(node)
        if isinstance(node, nodes.Name):
            return None if node.name in self._local or _is_loop(node) else _outer(node.name, None)
        if isinstance(node, nodes.Filter):
            return self._length(node)
        return self._operation(node)

    def _attribute(self, node: nodes.Getattr) -> Column | None:
        if not isinstance(node.node, nodes.Name):
            return None
        name, attribute = node.node.name, node.attr
        if name != LOOP:
            is_mine = name in self._local or (name, attribute) in self._changed
            return None if is_mine else _outer(name, attribute)
        values = _PLACES.get(attribute)
        if values is None:
            return None
        return Column(
            lambda count, _: values(count),
            is_flag=attribute in _FLAGS,
            is_number=attribute not in _FLAGS,
            moves=attribute in _FROM_THE_END,
        )

    def _length(self, node: nodes.Filter) -> Column | None:
        if node.name not in ("length", "count") or not isinstance(node.node, nodes.Name):
            return None
        name = node.node.name
        if name in self._local or name == LOOP or node.args or node.kwargs:
            return None
        return replace(_outer(name, LENGTH), is_placed=True, is_number=True, moves=True)

    def _operation(self, node: nodes.Node) -> Column | None:
        if isinstance(node, nodes.Not):
            inside = self._column(node.node)
            return None if inside is None else _compared(lambda one, _: not one, inside, inside)
        if isinstance(node, nodes.Compare):
            sides = (node.expr, node.ops[0].expr)
            work = _COMPARED.get(node.ops[0].op) if len(node.ops) == 1 else None
        elif isinstance(node, nodes.BinExpr):
            sides = (node.left, node.right)
            work = _COUNTED.get(type(node)) or _CHOSEN.get(type(node))
        else:
            return None
        left, right = (self._column(side) for side in sides)
        if work is None or left is None or right is None:
            return None
        if type(node) in _COUNTED:
            return _counted(work, left, right)
        if type(node) in _CHOSEN and not (left.is_flag and right.is_flag):
            return None
        return _compared(work, left, right)


def only_where(column: Column, condition: Column, *, wanted: bool) -> Column:
    """The column where the body gets to asking for it; None elsewhere."""

    def compute(count: int, outer: Mapping[Outer, Any]) -> Sequence[Any]:
        both = zip(column.compute(count, outer), condition.compute(count, outer), strict=True)
        return [value if asked is wanted else None for value, asked in both]

    return Column(compute, column.reads | condition.reads, moves=column.moves)


def _is_loop(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == LOOP


def _further_on(step: int) -> Compute:
    """Unlike an index, -1 is not the last."""
    return lambda count, _: [at if 0 <= at < count else None for at in range(step, count + step)]


def _constant(value: Any) -> Column:
    return Column(
        lambda count, _: [value] * count,
        is_placed=False,
        is_flag=isinstance(value, bool),
        is_number=type(value) is int,
    )


def _outer(name: str, attribute: str | None) -> Column:
    asked = (name, attribute)
    return Column(lambda count, outer: [outer[asked]] * count, frozenset({asked}), is_placed=False)


def _compared(work: Callable[[Any, Any], Any], left: Column, right: Column) -> Column:
    return Column(
        lambda count, outer: list(
            map(work, left.compute(count, outer), right.compute(count, outer))
        ),
        left.reads | right.reads,
        left.is_placed or right.is_placed,
        is_flag=True,
    )


def _counted(work: Callable[[Any, Any], Any], left: Column, right: Column) -> Column:
    sure = _of_numbers(work)
    return Column(
        lambda count, outer: list(
            map(sure, left.compute(count, outer), right.compute(count, outer))
        ),
        left.reads | right.reads,
        left.is_placed or right.is_placed,
        is_number=True,
        moves=left.moves or right.moves,
    )


def _of_numbers(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A text times or before a number is something else, and can be long. TypeError."""

    def checked(left: Any, right: Any) -> Any:
        if type(left) is not int or type(right) is not int:
            raise TypeError
        return work(left, right)

    return checked
