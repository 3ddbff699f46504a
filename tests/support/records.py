"""Records as a run leaves them, made by hand."""

from typing import Any

from loadgen.record import Record
from loadgen.runner import RunResult


def record(number: int = 0, scheduled_s: float = 1.0, sent_s: float = 1.0, **fields) -> Record:
    """Answered; three tokens at 1.5, 1.6 and 1.8 s unless `fields` says otherwise."""
    known: dict[str, Any] = {
        "session": f"s{number}",
        "turn": 0,
        "outcome": "ok",
        "end_s": 2.0,
        "first_token_s": 1.5,
        "last_token_s": 1.8,
        "completion_tokens": 3,
        "arrivals_s": [1.5, 1.6, 1.8],
        "arrival_tokens": [1, 1, 1],
    }
    return Record(number=number, scheduled_s=scheduled_s, sent_s=sent_s, **(known | fields))


def failed(outcome: str = "timeout", **fields) -> Record:
    none: dict[str, Any] = {
        "first_token_s": None,
        "last_token_s": None,
        "arrivals_s": [],
        "arrival_tokens": [],
    }
    return record(outcome=outcome, **(none | fields))


def result(records: list[Record], planned: int | None = None, **fields) -> RunResult:
    planned = len(records) if planned is None else planned
    return RunResult(planned=planned, records=records, duration_s=2.0, **fields)
