"""A chat template's loops, replayed as far as they are remembered.

A conversation's next turn repeats its beginning. A loop over messages (`loop_shape`) is replayed
up to the first turn that isn't known; from there the template runs as always, and what it says is
remembered. A turn's key is all that the turn can depend on.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from jinja2 import Undefined
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace
from xxhash import xxh3_128_digest

from router.tokens.loop_shape import LoopShape
from router.tokens.passages import Chat, Key, Part, Passage, Passages
from router.tokens.told import Heard
from router.tokens.turns import NOTHING, SCALARS, Loop, Numbers, Turns, Unsure, scalar, stable

UNSURE: Final = (TypeError, ArithmeticError, LookupError, AttributeError)
"""What computing a key can raise when a template does what was not foreseen: it runs as always."""


@dataclass(frozen=True, slots=True)
class Loops:
    """A template's loops that can be remembered, and the `id`s of its environment's functions."""

    loops: Sequence[Loop]
    functions: Collection[int]


class Replay:
    """One rendering. `parts`: what the template has put out; passages stand for their texts."""

    def __init__(self, loops: Loops, memo: Passages, heard: Heard[Any], tools: Any) -> None:
        """`heard`: the messages that loops may go over, as they are told apart."""
        self.parts: list[Part] = []
        self.chars = 0
        """Of the passages in `parts`."""
        self._memo = memo
        self._numbers = Numbers(heard)
        self._chat = Chat(heard.before, heard.now)
        self._tools = tools
        self._loops = loops
        self._recording: _Recording | None = None

    def enter(self, number: int, items: Any, values: Sequence[Any]) -> Any:
        """Say what is remembered of a loop. Returns the items, or pairs, that are left to run."""
        loop = self._loops.loops[number]
        shape = loop.shape
        self._recording = None
        try:
            turns = Turns(loop, items, values, self._numbers)
            settings = self._memo.number_of((number, *self._settings(turns)))
            columns = turns.columns()
            state = turns.state()
        except UNSURE:
            return _from(items, 0, shape)
        found = self._memo.recall(settings, state, columns, self._chat)
        self.chars += found.chars
        self.parts += found.passages
        if found.turns:
            turns.restore(found.passages[-1].after)
        self._recording = _Recording(turns, settings, found.rest)
        return _from(items, found.turns, shape)

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

    def _settings(self, turns: Turns) -> Iterable[Hashable]:
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
        if type(value) in SCALARS:
            return scalar(value)
        if value is self._tools:
            return "tools", xxh3_128_digest(msgspec.json.encode(value))
        if id(value) in self._loops.functions:
            return "function", id(value)
        if (number := self._numbers.of_one(value)) is not None:
            return "message", number
        raise Unsure


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


class _Recording:
    """Turns that run now: where each begins, and what the namespaces hold there."""

    def __init__(self, turns: Turns, settings: int, rows: Sequence[Key]) -> None:
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
