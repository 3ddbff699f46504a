"""What a template's loops, or code, made of messages: a bounded memo."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from router.tokens.beginnings import NONE
from router.tokens.shelf import Shelf

Key: TypeAlias = tuple[Any, ...]

PASSAGE_BYTES: Final = 600
CELL_BYTES: Final = 40
"""What an entry takes beside its texts and ids: objects, key and the dict's part (measured); and a
turn's part of a segment's columns."""

MAX_SETTINGS: Final = 1024
RUNS_SHARE: Final = 4
PLACES_SHARE: Final = 64
TURNS: Final = 16
"""Of so many passages in a row a segment is made."""


class Passage(msgspec.Struct, gc=False):
    """What one turn said. `after`: the changed attributes behind it. `ids`: the encoder's note.

    The text of what code laid out is its literal pieces, joined. No garbage collection looks at
    it: thousands are kept, and none is part of a cycle.
    """

    text: str
    after: Sequence[Any] = ()
    key_after: Key = ()
    ids: bytes | None = None
    opens: bool | None = None


Part: TypeAlias = str | Passage


Columns: TypeAlias = list[Sequence[Any]]
"""What turns depend on: one list with a value for each turn, or several."""
Found: TypeAlias = Sequence[Passage]


def text_of(part: Part) -> str:
    return part if isinstance(part, str) else part.text


def _stands(passage: Passage) -> bool:
    """Whether it has a cut before it and ids of its own, or is nothing at all."""
    return not passage.text or (passage.ids is not None and passage.opens is True)


def _some(columns: Columns, start: int, stop: int | None) -> Columns:
    return [column[start:stop] for column in columns]


def _begins_with_a_cut(found: Found) -> bool:
    return next((one.opens is True for one in found if one.text), False)


class Run(msgspec.Struct, gc=False):
    """Passages of a chat's first turns, as a few that stand for `TURNS` each. `columns`: of all
    these turns. `ends`: how many characters there are up to each one's end."""

    columns: Columns
    segments: list[Passage]
    ends: list[int]

    @property
    def cost(self) -> int:
        ids = sum([len(one.ids or b"") for one in self.segments])
        cells = TURNS * len(self.segments) * len(self.columns)
        return ids + CELL_BYTES * cells + PASSAGE_BYTES * (1 + len(self.segments))

    def same(self, columns: Columns) -> int:
        """How many segments hold: those in whose turns the columns are the same."""
        if not self.segments or self.columns == _some(columns, 0, TURNS * len(self.segments)):
            return len(self.segments)
        size = 0
        while self._some(size + 1) == _some(columns, 0, TURNS * (size + 1)):
            size += 1
        return size

    def cut(self, size: int) -> Run:
        """The first of its segments."""
        if size == len(self.segments):
            return self
        return Run(self._some(size), self.segments[:size], self.ends[:size])

    def grown(self, columns: Columns, found: Found) -> Run:
        """With more segments, of passages behind it. What stands by itself does so next time."""
        segments, ends = [*self.segments], [*self.ends]
        for at in range(0, len(found) - TURNS + 1, TURNS):
            some = found[at : at + TURNS]
            if not all(map(_stands, some)):
                break
            segments.append(_segment(some))
            ends.append(sum([len(one.text) for one in some]) + (ends[-1] if ends else 0))
        if len(segments) == len(self.segments):
            return self
        return Run(_some(columns, 0, TURNS * len(segments)), segments, ends)

    def _some(self, size: int) -> Columns:
        return _some(self.columns, 0, TURNS * size)


NO_RUN: Final = Run([], [], [])


def _segment(found: Found) -> Passage:
    """Passages as one, with their ids and without their text: it is put where what follows begins
    with a cut."""
    ids, last = b"".join([one.ids for one in found if one.ids is not None]), found[-1]
    return Passage("", last.after, last.key_after, ids, True)


class Recalled(NamedTuple):
    """Passages of the first `turns` turns, `chars` in all, and the keys of the `rest`."""

    passages: list[Passage]
    turns: int
    chars: int
    rest: list[Key]


class Chat(NamedTuple):
    """Numbers of what is known of a chat's list of messages: see `told.Heard`."""

    before: int = NONE
    now: int = NONE


NO_CHAT: Final = Chat()


class Passages:
    """What was said of messages. `settings`: all that a loop's turns share, as a number."""

    def __init__(self, max_bytes: int) -> None:
        runs, places = max_bytes // RUNS_SHARE, max_bytes // PLACES_SHARE
        self.shelf: Shelf[Key, Passage] = Shelf(max_bytes - runs - places)
        self._runs: Shelf[Key, Run] = Shelf(runs)
        self._places: Shelf[int, Sequence[int]] = Shelf(places)
        self.hits = 0
        self.misses = 0
        self._settings: dict[Key, int] = {}
        self._numbers = count()

    def number_of(self, settings: Key) -> int:
        known = self._settings
        if settings not in known:
            if len(known) >= MAX_SETTINGS:
                known.clear()
            known[settings] = next(self._numbers)
        return known[settings]

    @property
    def size_bytes(self) -> int:
        return self.shelf.size_bytes + self._runs.size_bytes + self._places.size_bytes

    def recall(self, settings: int, state: Key, columns: Columns, chat: Chat = NO_CHAT) -> Recalled:
        """The passages of the first turns, up to one that isn't known."""
        key = (settings, state)
        known = None if chat.before == NONE else self._runs.get((*key, chat.before))
        run = NO_RUN if known is None else known.cut(known.same(columns))
        while True:
            before = run.segments[-1].key_after if run.segments else state
            rows = list(zip(*_some(columns, TURNS * len(run.segments), None), strict=True))
            found = self._recall_each(settings, before, rows)
            if not run.segments or _begins_with_a_cut(found):
                break
            run = run.cut(len(run.segments) - 1)
        chars = sum([len(one.text) for one in found]) + (run.ends[-1] if run.ends else 0)
        turns = TURNS * len(run.segments) + len(found)
        self.hits += turns
        self.misses += len(rows) - len(found)
        if chat.now != NONE:
            run_now = run.grown(columns, found)
            if run_now is not known or chat.now != chat.before:
                self._runs.drop((*key, chat.before))
                self._runs.replace((*key, chat.now), run_now, run_now.cost)
        return Recalled(run.segments + found, turns, chars, rows[len(found) :])

    def places(self, chat: Chat) -> Sequence[int]:
        """What was noted of the messages that a chat begins with."""
        return self._places.get(chat.before) or ()

    def note_places(self, chat: Chat, places: Sequence[int]) -> None:
        """Places in its list of messages that its next turn need not look for."""
        if places and chat.now not in (NONE, chat.before):
            self._places.drop(chat.before)
            self._places.put(chat.now, places, PASSAGE_BYTES + CELL_BYTES * len(places))

    def _recall_each(self, settings: int, state: Key, rows: Sequence[Key]) -> list[Passage]:
        if not state:  # no turn changes what the next one depends on: nearly every loop
            return self.shelf.recall_run(list(zip(repeat(settings), repeat(state), rows)))
        return self._recall_chain(settings, state, rows)

    def recall_all(self, rows: Sequence[Key]) -> list[Passage | None]:
        """What is known of each row, for passages that depend on nothing but their row."""
        found = self.shelf.recall([(0, (), (row,)) for row in rows])
        missed = found.count(None)
        self.hits += len(found) - missed
        self.misses += missed
        return found

    def _recall_chain(self, settings: int, state: Key, rows: Sequence[Key]) -> list[Passage]:
        found: list[Passage] = []
        with self.shelf.lock:
            for row in rows:
                passage = self.shelf.lookup((settings, state, row))
                if passage is None:
                    break
                found.append(passage)
                state = passage.key_after
        return found

    def remember_one(self, row: Key, passage: Passage) -> None:
        """For `recall_all`, and for `recall` of one column of rows, without settings or state."""
        self.remember(0, (), (row,), passage)

    def remember(self, settings: int, state: Key, row: Key, passage: Passage) -> None:
        cost = 2 * len(passage.text) + PASSAGE_BYTES
        self.shelf.put((settings, state, row), passage, cost)
