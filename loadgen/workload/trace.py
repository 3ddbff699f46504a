"""Replay of traces in Mooncake's format: one JSON object a line, prompts as lists of block ids.

`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, …]}`: an id
stands for 512 tokens *and all before them*; rows with a common start of ids share that prompt.
The prompts themselves are not published, so an id's text is made from the id: equal ids, equal
text, and the sharing appears in real tokens. The answers' blocks are not in the trace.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from loadgen.arrival import arrival_times
from loadgen.text import Prose
from loadgen.workload.protocol import Message, Session, Turn, salted

MOONCAKE_BLOCK_TOKENS: Final = 512


class TraceError(Exception):
    """The file is not a trace that can be replayed; says which line and why."""


class TraceRow(msgspec.Struct, frozen=True):
    """One row as published; times in milliseconds, lengths in tokens."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """`scale` shrinks every length, so that a trace of long prompts fits a small engine.

    `speed_up` 2 halves the pauses between rows. With `rate_per_s` the rows keep their order, and
    their times are drawn anew. Rows whose scaled prompt is above `max_input_tokens` are left out.
    """

    path: str
    requests: int | None = None
    scale: float = 1.0
    speed_up: float = 1.0
    rate_per_s: float | None = None
    arrival: str = "poisson"
    burstiness: float = 1.0
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    max_input_tokens: int | None = None


def read_trace(path: Path) -> list[TraceRow]:
    """All rows in the order of their times. TraceError on a line that is none; blank lines pass."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise TraceError(f"{path}: {exc.strerror or exc}") from exc
    rows = [_row(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise TraceError(f"{path}: no rows")
    return sorted(rows, key=lambda row: row.timestamp)


def _row(line: bytes, where: str) -> TraceRow:
    try:
        return msgspec.json.decode(line, type=TraceRow)
    except msgspec.MsgspecError as exc:
        raise TraceError(f"{where}: {exc}") from exc


class Trace:
    """Each row is a session of one turn with one user message."""

    name = "trace"

    def __init__(
        self, rows: Iterable[TraceRow], options: TraceOptions, prose: Prose, salt: str = ""
    ) -> None:
        wanted = list(itertools.islice(rows, options.requests))
        limit = options.max_input_tokens or math.inf
        self._rows = [row for row in wanted if row.input_length * options.scale <= limit]
        self._left_out = len(wanted) - len(self._rows)
        self._options = options
        self._prose = prose
        self._salt = salt

    @property
    def requests(self) -> int:
        return len(self._rows)

    @property
    def parameters(self) -> Mapping[str, object]:
        return {
            **asdict(self._options),
            "path": Path(self._options.path).name,
            "left_out": self._left_out,
        }

    def sessions(self) -> Iterator[Session]:
        for number, (row, start_s) in enumerate(zip(self._rows, self._times(), strict=False)):
            yield Session(f"r{number}", start_s, (self._turn(row),))

    def _times(self) -> Iterator[float]:
        options = self._options
        if options.rate_per_s is not None:
            rng = random.Random(f"trace {self._prose.seed}")
            return arrival_times(options.arrival, options.rate_per_s, rng, options.burstiness)
        first = self._rows[0].timestamp if self._rows else 0.0
        per_ms = 1e-3 / options.speed_up
        return ((row.timestamp - first) * per_ms for row in self._rows)

    def _turn(self, row: TraceRow) -> Turn:
        options = self._options
        messages = (Message("user", self._prompt(row)),)
        return Turn(
            messages=salted(messages, self._salt),
            max_tokens=max(1, round(row.output_length * options.scale)),
            input_tokens=max(1, round(row.input_length * options.scale)),
        )

    def _prompt(self, row: TraceRow) -> str:
        block = self._options.block_tokens
        left = row.input_length
        parts = []
        for hash_id in row.hash_ids:
            if left <= 0:
                break
            tokens = min(block, left) * self._options.scale
            parts.append(self._prose.passage(f"block {hash_id}", tokens))
            left -= block
        return " ".join(parts)
