"""What a template's loop over messages depends on, read from its syntax.

A turn of the loop can be remembered if its text follows from few things: the message, the places
that the body asks for (`loop.first`, `loop.index0 > ns.last`), the neighbours that it names, the
namespace's attributes that it changes, and names that no turn changes. `prepare` finds the loops
whose bodies depend on nothing else. A body with any construct that isn't known here is left as it
is, so what is remembered is exact by construction, not by experience.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from jinja2 import nodes

from router.tokens.loop_places import LOOP, Column, Neighbour, Outer, Places, only_where

REPLAY: Final = "warmgate replay"
"""A filter of ours; no template can name it."""

ALIAS: Final = "warmgate_loop"
ON_TURN: Final = "on_turn"
ON_END: Final = "on_end"
"""Attributes of the environment that a prepared loop reads: before each turn, and at its end."""

FUNCTIONS: Final = frozenset({"raise_exception", "range", "dict", "namespace"})
"""Functions that give the same for the same arguments and do nothing else."""

_PLAIN: Final = (
    nodes.Output, nodes.TemplateData, nodes.ExprStmt, nodes.Const, nodes.Slice,
    nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.Not,
    nodes.Neg, nodes.Pos, nodes.BinExpr, nodes.Concat, nodes.CondExpr, nodes.List, nodes.Tuple,
    nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Getattr, nodes.Getitem,
)  # fmt: skip


@dataclass(slots=True)
class LoopShape:
    """One loop that can be remembered.

    `names`: of all values from outside that its turns depend on. `columns`, `neighbours`:
    what it asks of places.
    `uses`: of a name the attributes that are read (None: the value itself) beside what `columns`
    and `changed` read. `changed`: attributes of namespaces that the body sets.
    """

    names: list[str] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)
    uses: dict[str, set[str | None]] = field(default_factory=dict)
    changed: list[tuple[str, str]] = field(default_factory=list)
    reads_loop: bool = False

    @property
    def outer(self) -> list[Outer]:
        """Scalars that the columns and neighbours follow from."""
        places = [*self.columns, *(one.places for one in self.neighbours)]
        return sorted({read for column in places for read in column.reads}, key=str)


N = TypeVar("N", bound=nodes.Node)


class _Unknown(Exception):
    """The body has a construct whose dependencies are not known here."""


def prepare(tree: nodes.Template) -> list[LoopShape]:
    """Make the template ask the filter `REPLAY` at each loop that is returned.

    The filter gets the loop's items, its number, and the values of its names.
    """
    shapes: list[LoopShape] = []
    _prepare_in(tree.body, shapes)
    return shapes


def _prepare_in(body: list[nodes.Node], shapes: list[LoopShape]) -> None:
    for at in range(len(body) - 1, -1, -1):
        node = body[at]
        if isinstance(node, nodes.If):
            for branch in (node.body, *(other.body for other in node.elif_), node.else_):
                _prepare_in(branch, shapes)
        elif isinstance(node, nodes.For):
            _leave_early(node)
            if (shape := _shape(node)) is not None:
                _ask_first(node, len(shapes), shape)
                body.insert(at + 1, _read(ON_END, node.lineno))
                shapes.append(shape)


def _shape(loop: nodes.For) -> LoopShape | None:
    """None: it isn't known what its turns depend on, or none could ever be met again."""
    if loop.recursive or loop.test or loop.else_ or not isinstance(loop.target, nodes.Name):
        return None
    if loop.find(nodes.Output) is None and not any(loop.find_all(nodes.NSRef)):
        return None
    try:
        reader = _Reader(loop)
        reader.read()
    except _Unknown:
        return None
    if any(column.moves for column in reader.shape.columns):
        return None
    for name in reader.loop_names:
        name.name = ALIAS
    reader.shape.reads_loop = bool(reader.loop_names)
    return reader.shape


def _ask_first(loop: nodes.For, number: int, shape: LoopShape) -> None:
    line = loop.lineno
    values: list[nodes.Expr] = [nodes.Name(name, "load") for name in shape.names]
    asked = nodes.Filter(loop.iter, REPLAY, [nodes.Const(number), *values], [], None, None)
    loop.iter = asked
    loop.body.insert(0, _read(ON_TURN, line))
    if shape.reads_loop:
        loop.target = nodes.Tuple([loop.target, nodes.Name(ALIAS, "store")], "store")
    for node in (loop.target, loop.iter):
        node.set_lineno(line)


def _read(attribute: str, line: int) -> nodes.Node:
    return nodes.ExprStmt(nodes.EnvironmentAttribute(attribute)).set_lineno(line)


class _Reader:
    """Goes through one loop's body and notes all that it reads and changes."""

    def __init__(self, loop: nodes.For) -> None:
        self.shape = LoopShape()
        self.loop_names: list[nodes.Name] = []
        self._body = loop.body
        stored = [name for node in loop.body for name in _all(node, nodes.Name)]
        local = {name.name for name in stored if name.ctx == "store"} | {_name(loop.target)}
        if LOOP in local:
            raise _Unknown
        changed = {(ref.name, ref.attr) for node in loop.body for ref in _all(node, nodes.NSRef)}
        self.shape.changed = sorted(changed)
        self._places = Places(local, changed)
        self._set = {_name(loop.target)}  # what is certainly set where it has been read up to
        self._where: list[tuple[Column, bool]] = []  # what holds of the turn there

    def read(self) -> None:
        for name, _ in self.shape.changed:
            self.shape.uses.setdefault(name, set())
        self._read_all(self._body, inner=False)
        self.shape.names = sorted(self.shape.uses)

    def _read_all(self, found: Iterable[nodes.Node], *, inner: bool) -> None:
        """`inner`: inside a loop of the body's own, where `loop` is that one."""
        for node in found:
            self._read(node, inner=inner)

    def _read(self, node: nodes.Node, *, inner: bool) -> None:
        if not inner and self._asks_for_place(node):
            return
        if isinstance(node, nodes.Name):
            self._read_name(node, inner=inner)
        elif isinstance(node, nodes.Getattr) and _name(node.node) not in ("", LOOP):
            self._use(_name(node.node), node.attr)
        elif isinstance(node, nodes.If):
            self._read_if(node, inner=inner)
        elif isinstance(node, nodes.Or | nodes.And):
            self._read_either(node, inner=inner)
        elif isinstance(node, nodes.For):
            self._read_inner(node, inner=inner)
        elif isinstance(node, nodes.Assign | nodes.AssignBlock):
            self._read_assignment(node, inner=inner)
        else:
            self._read_other(node, inner=inner)

    def _read_other(self, node: nodes.Node, *, inner: bool) -> None:
        if isinstance(node, nodes.Call):
            callee = node.node
            is_function = isinstance(callee, nodes.Name) and callee.name in FUNCTIONS
            if not is_function and not isinstance(callee, nodes.Getattr):
                raise _Unknown
        elif not isinstance(node, _PLAIN):
            raise _Unknown
        self._read_all(node.iter_child_nodes(), inner=inner)

    def _asks_for_place(self, node: nodes.Node) -> bool:
        asked = node.node if isinstance(node, nodes.Not) else node  # they tell the same
        column, neighbour = self._places.column(asked), self._places.neighbour(asked)
        if column is None and neighbour is None:
            return False
        self.loop_names += [name for name in _all(node, nodes.Name) if name.name == LOOP]
        if column is not None:
            self.shape.columns.append(self._where_read(column))
        elif neighbour is not None:
            self.shape.neighbours.append(
                Neighbour(neighbour.name, self._where_read(neighbour.places))
            )
            if neighbour.name:
                self.shape.uses.setdefault(neighbour.name, set())
        return True

    def _where_read(self, column: Column) -> Column:
        for condition, wanted in self._where:
            column = only_where(column, condition, wanted=wanted)
        for name, _ in column.reads:
            self.shape.uses.setdefault(name, set())
        return column

    def _read_either(self, node: nodes.Or | nodes.And, *, inner: bool) -> None:
        """`loop.first or messages[loop.index0 - 1] …`: the first turn does not read the other."""
        self._read(node.left, inner=inner)
        self._read_where(node.left, isinstance(node, nodes.And), [node.right], inner=inner)

    def _read_if(self, node: nodes.If, *, inner: bool) -> None:
        self._read(node.test, inner=inner)
        before = set(self._set)
        self._read_where(node.test, True, node.body, inner=inner)
        after, self._set = self._set, before
        self._read_where(node.test, False, [*node.elif_, *node.else_], inner=inner)
        self._set &= after

    def _read_where(
        self, test: nodes.Node, wanted: bool, found: Iterable[nodes.Node], *, inner: bool
    ) -> None:
        condition = None if inner else self._places.column(test)
        if condition is None or not condition.is_flag:
            self._read_all(found, inner=inner)
            return
        self._where.append((condition, wanted))
        self._read_all(found, inner=inner)
        self._where.pop()

    def _read_name(self, node: nodes.Name, *, inner: bool) -> None:
        if node.name == LOOP:
            if not inner:
                raise _Unknown
        elif node.ctx == "load":
            self._use(node.name, None)

    def _use(self, name: str, attribute: str | None) -> None:
        if name in self._set:
            return
        used = self.shape.uses.setdefault(name, set())
        if (name, attribute) not in self.shape.changed:
            used.add(attribute)

    def _read_inner(self, loop: nodes.For, *, inner: bool) -> None:
        if loop.recursive or loop.else_:
            raise _Unknown
        self._read(loop.iter, inner=inner)
        before = set(self._set)
        self._set |= {name.name for name in _all(loop.target, nodes.Name)}
        self._read_all([loop.test] if loop.test is not None else [], inner=True)
        self._read_all(loop.body, inner=True)
        self._set = before

    def _read_assignment(self, node: nodes.Assign | nodes.AssignBlock, *, inner: bool) -> None:
        for child in node.iter_child_nodes(exclude=("target",)):
            self._read(child, inner=inner)
        self._set |= {name.name for name in _all(node.target, nodes.Name)}


def _name(node: nodes.Node) -> str:
    return node.name if isinstance(node, nodes.Name) else ""


def _all(node: nodes.Node, kind: type[N]) -> Iterator[N]:
    if isinstance(node, kind):
        yield node
    yield from node.find_all(kind)


def _leave_early(loop: nodes.For) -> None:
    """End a loop that only looks for something as soon as it has found it.

    Its body is one `if ns.looking and …` that puts out nothing (and, before it, sums of places).
    When `ns.looking` is false no later turn does anything, so leaving changes nothing.
    """
    *sums, last = loop.body
    if loop.else_ or loop.recursive or loop.test or not isinstance(last, nodes.If):
        return
    if last.elif_ or last.else_ or loop.find(nodes.Output) is not None:
        return
    first: nodes.Node = last.test
    while isinstance(first, nodes.And):
        first = first.left
    if not isinstance(first, nodes.Getattr) or not isinstance(first.node, nodes.Name):
        return
    stored = {_name(one.target) for one in sums if isinstance(one, nodes.Assign)}
    places = Places({*stored, _name(loop.target)})
    is_sum = [isinstance(one, nodes.Assign) and places.column(one.node) for one in sums]
    if all(is_sum) and first.node.name not in {LOOP, _name(loop.target), *stored}:
        leave = nodes.If(nodes.Not(first), [nodes.Break()], [], [])
        loop.body.insert(0, leave.set_lineno(loop.lineno))
