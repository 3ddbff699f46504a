"""What a workload is: sessions with a start, each a list of turns. No server, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One chat message, encoded as the API wants it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What is added to a conversation before the model is asked again."""

    messages: tuple[Message, ...]
    max_tokens: int
    input_tokens: int
    """What the workload wished the whole prompt to be, or 0 where history makes it unknown."""

    think_s: float = 0.0
    """Pause after the answer before; of no use in a first turn."""

    branches: tuple[Session, ...] = ()
    """Sub-agents that run side by side first; the turn is due `think_s` after the last of them.

    Their `start_s` counts from the end of the answer before.
    """

    @property
    def requests(self) -> int:
        return 1 + sum(branch.requests for branch in self.branches)


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that build on each other: a turn is due `think_s` after the answer before it."""

    id: str
    start_s: float
    turns: tuple[Turn, ...] = field(default=())

    @property
    def requests(self) -> int:
        return sum(turn.requests for turn in self.turns)


class Workload(Protocol):
    """A finite, repeatable schedule: the same parameters give the same sessions, byte for byte."""

    @property
    def name(self) -> str: ...

    @property
    def requests(self) -> int:
        """How many requests all the sessions make."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """For the report: what another person needs to repeat the run."""

    def sessions(self) -> Iterator[Session]:
        """In order of start, built as they are asked for: a trace's prompts may be gigabytes."""


def salted(messages: tuple[Message, ...], salt: str) -> tuple[Message, ...]:
    """Put `salt` in front of the first message, so that nothing an earlier run left can match."""
    if not salt or not messages:
        return messages
    first = messages[0]
    return (Message(first.role, f"{salt} {first.content}"), *messages[1:])


def zipf_weights(count: int, skew: float) -> list[float]:
    """1/k**skew for k from 1: 0 is even."""
    return [1 / (k + 1) ** skew for k in range(count)]
