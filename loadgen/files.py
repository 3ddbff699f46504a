"""What is written for programs, and read back: JSON, a record per line, CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from loadgen.quantiles import Quantiles
from loadgen.record import Record
from loadgen.summary import Summary

LATENCIES: Final = (
    *("ttft", "ttft_failed_inf", "ttft_sent", "ttft_content", "itl", "chunk_gap", "tpot"),
    *("e2e", "e2e_failed_inf", "e2e_sent"),
)
COLUMNS: Final = (
    "label", "metric", "unit", "n", "value", "mean", "p50", "p90", "p95", "p99", "max",
    "p95_low", "p95_high",
)  # fmt: skip


class FileError(Exception):
    """A file that should be read is not there, or not what it should be."""


def write_json(path: Path, document: object) -> None:
    """Indented, with parents made; `document` is anything msgspec can encode.

    Whoever is ended while it writes leaves what was there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    part.replace(path)


def write_jsonl(path: Path, records: Iterable[Record]) -> None:
    """One record a line, in the order in which they ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as lines:
        lines.writelines(encode(record) + b"\n" for record in records)


def read_jsonl(path: Path) -> list[Record]:
    """What `write_jsonl` wrote. FileError names the line."""
    decode = msgspec.json.Decoder(Record).decode
    found = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise FileError(f"{path}: {exc.strerror or exc}") from exc
    for number, line in enumerate(lines, 1):
        try:
            found.append(decode(line))
        except msgspec.MsgspecError as exc:
            raise FileError(f"{path}:{number}: {exc}") from exc
    return found


def write_csv(path: Path, summaries: Mapping[str, Summary]) -> None:
    """A row per label and metric; latencies in milliseconds, single figures under `value`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        for label, summary in summaries.items():
            for name in LATENCIES:
                values: Quantiles = getattr(summary.latency_ms, name)
                table.writerow({"label": label, "metric": name, "unit": "ms", **_cells(values)})
            for name, unit, value in _figures(summary):
                table.writerow({"label": label, "metric": name, "unit": unit, "value": value})


def _cells(values: Quantiles) -> dict[str, object]:
    low, high = values.p95_ci or ("", "")
    cells: dict[str, object] = {
        name: getattr(values, name) for name in ("n", "mean", "p50", "p90", "p95", "p99", "max")
    }
    shown = {name: "" if value is None else value for name, value in cells.items()}
    return {**shown, "p95_low": low, "p95_high": high}


def _figures(summary: Summary) -> Iterable[tuple[str, str, object]]:
    plain = {
        "planned": "requests",
        "sent": "requests",
        "ok": "requests",
        "errors": "requests",
        "unsent": "requests",
        "duration_s": "s",
        "requests_per_s": "1/s",
        "output_tokens_per_s": "tokens/s",
        "prompt_tokens_per_s": "tokens/s",
        "hit_rate": "share",
        "hit_rate_bound": "share",
        "load_spread": "ratio",
    }
    for name, unit in plain.items():
        value = getattr(summary, name)
        yield name, unit, "" if value is None else value
    if summary.goodput is not None:
        yield "goodput_share", "share", summary.goodput.share
        yield "goodput_per_s", "1/s", summary.goodput.per_s
    yield "client_bound", "bool", int(summary.client.is_bound)
