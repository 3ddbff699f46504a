"""One record per request: what the report is computed from, and a line of the JSONL file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

OK: Final = "ok"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds from the start of the run; `*_tokens` are the engine's own counts.

    `outcome`: "ok", or why it is a failure: "connect", "disconnect", "timeout", "http" (see
    `status`), "error_event" (an error inside a stream that began with 200), "incomplete" (the
    stream ended early), "broken" (no parsable events), "empty" (no token).
    """

    number: int
    session: str
    turn: int
    outcome: str
    scheduled_s: float
    sent_s: float
    end_s: float
    cap_wait_s: float = 0.0
    """Part of the send lag that `--max-concurrency` asked for."""

    first_token_s: float | None = None
    first_content_s: float | None = None
    """First token that is not reasoning nor a tool call."""

    last_token_s: float | None = None
    error: str = ""
    status: int | None = None
    replica: str | None = None
    request_id: str | None = None
    finish_reason: str | None = None
    asked_input_tokens: int = 0
    asked_output_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    token_source: str = ""
    arrivals_s: list[float] = msgspec.field(default_factory=list)
    arrival_tokens: list[int] = msgspec.field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK

    @property
    def send_lag_s(self) -> float:
        return self.sent_s - self.scheduled_s

    @property
    def client_lag_s(self) -> float:
        """The send lag that nobody asked for: this program, or its machine, was too slow."""
        return self.send_lag_s - self.cap_wait_s

    @property
    def ttft_s(self) -> float | None:
        return _since(self.scheduled_s, self.first_token_s)

    @property
    def ttft_sent_s(self) -> float | None:
        return _since(self.sent_s, self.first_token_s)

    @property
    def ttft_content_s(self) -> float | None:
        return _since(self.scheduled_s, self.first_content_s)

    @property
    def e2e_s(self) -> float | None:
        return _since(self.scheduled_s, self.last_token_s)

    @property
    def e2e_sent_s(self) -> float | None:
        return _since(self.sent_s, self.last_token_s)

    @property
    def output_tokens(self) -> int:
        """As the engine counted, or the deltas that came when it didn't."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return sum(self.arrival_tokens)

    @property
    def tpot_s(self) -> float | None:
        """(last - first token) / (tokens - those in the first arrival); None for a single one.

        Tokens that came together with the first one cost no time after it.
        """
        if self.first_token_s is None or self.last_token_s is None or len(self.arrivals_s) < 2:
            return None
        later = self.output_tokens - self.arrival_tokens[0]
        return (self.last_token_s - self.first_token_s) / later if later > 0 else None

    def chunk_gaps(self) -> Iterator[tuple[float, int]]:
        """(seconds since the arrival before, tokens in this one), from the second arrival on."""
        before: float | None = None
        for at, tokens in zip(self.arrivals_s, self.arrival_tokens, strict=True):
            if before is not None:
                yield at - before, tokens
            before = at


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else end - start
