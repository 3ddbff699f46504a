"""`warmgate-load report`: figures and page from records that were written earlier; the schemas."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from loadgen.comparison import Comparison
from loadgen.differences import clusters, differences
from loadgen.files import read_jsonl, write_csv, write_json
from loadgen.measure import Surroundings
from loadgen.options import UsageError, natural, said
from loadgen.page import Page, Run, write_html
from loadgen.record import Record
from loadgen.report import Report, print_report
from loadgen.runner import RunResult
from loadgen.slo import judge, parse_goodput, parse_slo
from loadgen.summary import summarize
from loadgen.sweep import Sweep
from loadgen.window import Window

SCHEMAS: Final[dict[str, Any]] = {
    "run": Report, "compare": Comparison, "sweep": Sweep, "record": Record,
}  # fmt: skip


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `report`."""
    parser = commands.add_parser("report", help="figures and page from --jsonl files; schemas")
    parser.add_argument("files", nargs="*", type=Path, metavar="NAME.jsonl")
    add = parser.add_argument
    add("--schema", choices=tuple(SCHEMAS), help="print the JSON schema of a command's --json")
    add("--goodput", type=said(parse_goodput), action="append", default=[], metavar="METRIC:MS")
    add("--slo", type=said(parse_slo), action="append", default=[], metavar="NAME=N")
    add("--warmup-s", type=float, default=0.0)
    add("--warmup-requests", type=natural, default=0)
    add("--cooldown-s", type=float, default=0.0)
    add("--json", type=Path, metavar="FILE", help="of one file: the report")
    add("--csv", type=Path, metavar="FILE")
    add("--html", type=Path, metavar="FILE")
    parser.set_defaults(run=run)


def schema(name: str) -> bytes:
    """JSON Schema of a document, from the types that are written."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(SCHEMAS[name])), indent=2)


async def run(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """3 if an SLO is missed in a file."""
    if args.schema:
        console.out(schema(args.schema).decode(), highlight=False)
        return 0
    if not args.files:
        raise UsageError("report needs files that --jsonl wrote, or --schema")
    reports = [(report_of(path, args), read_jsonl(path)) for path in args.files]
    for report, _ in reports:
        print_report(report, console)
    for line in _changes(reports):
        console.print(line, highlight=False, markup=False)
    if args.json:
        write_json(args.json, reports[0][0])
    if args.csv:
        write_csv(args.csv, {report.label: report.summary for report, _ in reports})
    if args.html:
        runs = [Run(one.label, one.summary, records, len(records)) for one, records in reports]
        names = ", ".join(run.name for run in runs)
        write_html(args.html, Page(f"Load test: {names}", "from records", {}, runs))
    return 3 if any(not one.is_met for report, _ in reports for one in report.slos) else 0


def report_of(path: Path, args: argparse.Namespace) -> Report:
    """The figures again; what no record knows (URL, CPU of the client) stays empty."""
    records = read_jsonl(path)
    end_s = max((record.end_s for record in records), default=0.0)
    whole = RunResult(planned=len(records), records=records, duration_s=end_s)
    window = Window(args.warmup_s, args.warmup_requests, args.cooldown_s)
    summary = summarize(window.of(whole), (), dict(args.goodput))
    return Report(
        version="", started_at="", label=path.stem, url="", model="", parameters={},
        summary=summary, slos=judge(summary, dict(args.slo)),
    )  # fmt: skip


def _changes(reports: list[tuple[Report, list[Record]]]) -> list[str]:
    """Each file against the first."""
    (first, base), *others = reports
    return [
        f"{report.label} against {first.label}: {one.metric} {one.difference:+.1f} {one.unit},"
        f" 95 % interval {one.low:+.1f} .. {one.high:+.1f}: {'noise' if one.is_noise else 'real'}"
        for report, records in others
        for one in differences(clusters([base]), clusters([records]))
        if one.difference is not None and one.low is not None and one.high is not None
    ]
