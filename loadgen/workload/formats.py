"""Published traces, and our own access log, as rows: when, how long, sharing what.

| format | a row | shares |
|---|---|---|
| mooncake | timestamp (ms), input_length, output_length, hash_ids | by ids of 512 tokens |
| bailian | the same with chat_id, and seconds | by ids of 16 tokens |
| dynamo | `dynamo.request.trace.v1`, ends of requests | by `input_sequence_hashes` |
| azure | CSV: TIMESTAMP, ContextTokens, GeneratedTokens | nothing that is known |
| burstgpt | CSV: Timestamp (s), Request tokens, Response tokens | nothing that is known |
| access-log | the router's JSON lines | nothing that is known |
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

MOONCAKE_BLOCK_TOKENS: Final = 512
BAILIAN_BLOCK_TOKENS: Final = 16

T = TypeVar("T")


class TraceError(Exception):
    """The file is not a trace that can be replayed; says which line and why."""


class TraceRow(msgspec.Struct, frozen=True):
    """Time in milliseconds, lengths in tokens. An id stands for a block *and all before it*."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Rows in the order of their times, and how many tokens a hash id stands for."""

    rows: list[TraceRow]
    format: str
    block_tokens: int


class _Bailian(msgspec.Struct):
    chat_id: int | str
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _Replay(msgspec.Struct):
    input_length: int
    input_sequence_hashes: list[int]
    trace_block_size: int = MOONCAKE_BLOCK_TOKENS


class _Request(msgspec.Struct):
    request_received_ms: float
    output_tokens: int
    replay: _Replay


class _Dynamo(msgspec.Struct):
    request: _Request


class _Logged(msgspec.Struct):
    started: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def read_trace(path: Path, format: str = "auto") -> TraceFile:
    """TraceError on a line that is none; blank lines pass. `.gz` is unpacked."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise TraceError(f"{path}: {getattr(exc, 'strerror', None) or exc}") from exc
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError(f"{path}: no rows")
    name = _guess(lines[0][1]) if format == "auto" else format
    reader, block_tokens = FORMATS[name]
    rows = sorted(reader(lines, path), key=lambda row: row.timestamp)
    if not rows:
        raise TraceError(f"{path}: no rows of the format {name}")
    return TraceFile(rows, name, _block_tokens(lines, path) if name == "dynamo" else block_tokens)


def _guess(line: str) -> str:
    if "ContextTokens" in line:
        return "azure"
    if "Request tokens" in line:
        return "burstgpt"
    if "dynamo.request.trace" in line:
        return "dynamo"
    if '"chat_id"' in line:
        return "bailian"
    return "access-log" if '"request_id"' in line and '"started"' in line else "mooncake"


def _mooncake(lines: _Lines, path: Path) -> Iterator[TraceRow]:
    return (_decode(line, TraceRow, path, n) for n, line in lines)


def _bailian(lines: _Lines, path: Path) -> Iterator[TraceRow]:
    for n, line in lines:
        row = _decode(line, _Bailian, path, n)
        yield TraceRow(1e3 * row.timestamp, row.input_length, row.output_length, row.hash_ids)


def _ends(lines: _Lines, path: Path) -> Iterator[_Request]:
    for n, line in lines:
        # Dynamo's sinks wrap a record in {"timestamp", "event"}.
        record = _decode(line, dict[str, Any], path, n)
        record = record.get("event", record)
        if record.get("event_type") == "request_end":
            try:
                yield msgspec.convert(record, _Dynamo).request
            except msgspec.ValidationError as exc:
                raise TraceError(f"{path}:{n}: {exc}") from exc


def _dynamo(lines: _Lines, path: Path) -> Iterator[TraceRow]:
    for one in _ends(lines, path):
        replay = one.replay
        yield TraceRow(
            one.request_received_ms,
            replay.input_length,
            one.output_tokens,
            replay.input_sequence_hashes,
        )


def _block_tokens(lines: _Lines, path: Path) -> int:
    sizes = {one.replay.trace_block_size for one in _ends(lines, path)}
    if len(sizes) > 1:
        raise TraceError(f"{path}: blocks of different sizes: {sorted(sizes)}")
    return sizes.pop()


def _access_log(lines: _Lines, path: Path) -> Iterator[TraceRow]:
    for n, line in lines:
        at = line.find("{")
        if at < 0:
            continue  # the log's other lines
        row = _decode(line[at:], _Logged, path, n)
        if row.prompt_tokens:
            yield TraceRow(1e3 * row.started, row.prompt_tokens, row.completion_tokens or 1, [])


def _table(time: Callable[[str], float], *columns: str) -> Reader:
    def read(lines: _Lines, path: Path) -> Iterator[TraceRow]:
        numbers = [n for n, _ in lines]
        rows = csv.DictReader(line for _, line in lines)
        for n, row in zip(numbers[1:], rows, strict=False):
            try:
                at, prompt, answer = (row[column] for column in columns)
                yield TraceRow(time(at), int(prompt), max(1, int(answer)), [])
            except (KeyError, ValueError, TypeError) as exc:
                raise TraceError(f"{path}:{n}: {exc}") from exc

    return read


def _azure_ms(text: str) -> float:
    # Seven digits of a second; a datetime holds six.
    whole, _, part = text.partition(".")
    return 1e3 * datetime.fromisoformat(f"{whole}+00:00").timestamp() + 1e3 * float(
        f"0.{part or 0}"
    )


def _decode(line: str, kind: type[T], path: Path, number: int) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as exc:
        raise TraceError(f"{path}:{number}: {exc}") from exc


_Lines = Iterable[tuple[int, str]]
Reader = Callable[[list[tuple[int, str]], Path], Iterator[TraceRow]]

FORMATS: Final[dict[str, tuple[Reader, int]]] = {
    "mooncake": (_mooncake, MOONCAKE_BLOCK_TOKENS),
    "bailian": (_bailian, BAILIAN_BLOCK_TOKENS),
    "dynamo": (_dynamo, MOONCAKE_BLOCK_TOKENS),
    "azure": (_table(_azure_ms, "TIMESTAMP", "ContextTokens", "GeneratedTokens"), 512),
    "burstgpt": (
        _table(lambda s: 1e3 * float(s), "Timestamp", "Request tokens", "Response tokens"),
        512,
    ),
    "access-log": (_access_log, MOONCAKE_BLOCK_TOKENS),
}
