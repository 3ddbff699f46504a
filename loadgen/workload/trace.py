"""Replay of a trace: its times, its lengths, and what its prompts share.

The prompts themselves are not published, so a hash id's text is made from the id: equal ids, equal
text, and the sharing appears in real tokens. Rows without ids share nothing. The answers' blocks
are not in the trace.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from loadgen.arrival import Arrivals
from loadgen.text import Prose
from loadgen.workload.formats import TraceError, TraceFile, TraceRow, read_trace
from loadgen.workload.protocol import Message, Session, Turn, salted

__all__ = ["Trace", "TraceError", "TraceFile", "TraceOptions", "TraceRow", "read_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """`scale` shrinks every length, so that a trace of long prompts fits a small engine.

    `speed_up` 2 halves the pauses between rows; after that none is longer than `max_idle_gap_s`.
    With `arrivals` the rows keep their order, and their times are drawn anew. Rows whose scaled
    prompt is above `max_input_tokens` are left out. `block_tokens` None: as the format says.
    """

    path: str
    requests: int | None = None
    scale: float = 1.0
    speed_up: float = 1.0
    max_idle_gap_s: float | None = None
    arrivals: Arrivals | None = None
    block_tokens: int | None = None
    max_input_tokens: int | None = None


class Trace:
    """A recorded trace: its times, its lengths, and what its prompts share."""

    name = "trace"

    def __init__(
        self, file: TraceFile, options: TraceOptions, prose: Prose, salt: str = ""
    ) -> None:
        wanted = file.rows[: options.requests]
        limit = options.max_input_tokens or math.inf
        self._rows = [row for row in wanted if row.input_length * options.scale <= limit]
        self._left_out = len(wanted) - len(self._rows)
        self._format = file.format
        self._block_tokens = options.block_tokens or file.block_tokens
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
            "format": self._format,
            "block_tokens": self._block_tokens,
            "left_out": self._left_out,
        }

    def sessions(self) -> Iterator[Session]:
        if not self._rows:
            return
        for number, (row, start_s) in enumerate(zip(self._rows, self._times(), strict=False)):
            yield Session(f"r{number}", start_s, (self._turn(number, row),))

    def _times(self) -> Iterator[float]:
        options = self._options
        if options.arrivals is not None:
            return options.arrivals.times(random.Random(f"trace {self._prose.seed}"))
        return self._own_times(1e-3 / options.speed_up, options.max_idle_gap_s or math.inf)

    def _own_times(self, per_ms: float, longest_s: float) -> Iterator[float]:
        now = 0.0
        for before, row in itertools.pairwise((self._rows[0], *self._rows)):
            now += min(longest_s, (row.timestamp - before.timestamp) * per_ms)
            yield now

    def _turn(self, number: int, row: TraceRow) -> Turn:
        options = self._options
        messages = (Message("user", self._prompt(number, row)),)
        return Turn(
            messages=salted(messages, self._salt),
            max_tokens=max(1, round(row.output_length * options.scale)),
            input_tokens=max(1, round(row.input_length * options.scale)),
        )

    def _prompt(self, number: int, row: TraceRow) -> str:
        scale, block = self._options.scale, self._block_tokens
        if not row.hash_ids:
            return self._prose.passage(f"row {number}", row.input_length * scale)
        left = row.input_length
        parts = []
        for hash_id in row.hash_ids:
            if left <= 0:
                break
            parts.append(self._prose.passage(f"block {hash_id}", min(block, left) * scale))
            left -= block
        return " ".join(parts)
