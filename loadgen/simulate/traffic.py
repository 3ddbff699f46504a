"""Traffic as token segments: who asks what, when, and how long the answer is.

A prompt is a list of segments (id, tokens). Equal ids mean equal text, so two prompts share what
their leading segments share; the tokens of a segment are all its id, which is enough for chained
hashes to tell prompts apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

from router.blocks.hashing import TYPE_CODE

Segment: TypeAlias = tuple[int, int]

FIRST_ANSWER_ID: Final = 1 << 31
"""Ids below are the workload's segments; answers that nobody continues get ids from here on."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its prompt, the length and the segment id of its answer (0: nobody's)."""

    segments: tuple[Segment, ...]
    output_tokens: int
    answer_id: int = 0
    think_s: float = 0.0
    """Pause after the answer before; of no use in a first turn."""

    @property
    def prompt_tokens(self) -> int:
        return sum(length for _, length in self.segments)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Turns that build on each other. `name`: the session header, or None if the client sends none.
    `tenant`: whose they are, where that matters.

    With `after` (another dialogue's number), `start_s` counts from that one's end.
    """

    start_s: float
    turns: tuple[Ask, ...]
    name: str | None = None
    after: int | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run that is measured for itself; the next one starts when it has drained."""

    label: str
    dialogues: Sequence[Dialogue]
    is_measured: bool = True


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload's requests, in stages. `notes`: what another person needs to repeat it."""

    stages: Sequence[Stage]
    notes: str = ""

    @property
    def requests(self) -> int:
        return sum(len(d.turns) for stage in self.stages for d in stage.dialogues)


MakeTraffic: TypeAlias = Callable[[int], Traffic]
"""Seed → traffic."""


def tokens_of(segments: Sequence[Segment]) -> array[int]:
    """The prompt's token ids."""
    tokens = array(TYPE_CODE)
    for segment_id, length in segments:
        tokens.extend(array(TYPE_CODE, (segment_id,)) * length)
    return tokens


@dataclass(slots=True)
class Ids:
    """Fresh segment ids."""

    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def new(self) -> int:
        return next(self._numbers)

    def several(self, number: int) -> list[int]:
        return [self.new() for _ in range(number)]
