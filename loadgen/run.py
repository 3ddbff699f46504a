"""`warmgate-load run`: one workload against one server."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from loadgen.client import Target
from loadgen.measure import Measured, Surroundings, measure
from loadgen.options import (
    add_request_options,
    add_workload_options,
    make_settings,
    make_target,
    workload_maker,
)
from loadgen.report import Report, print_report, write_json, write_jsonl


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `run`."""
    parser = commands.add_parser("run", help="one workload against one server")
    add = parser.add_argument_group("target").add_argument
    add("--url", required=True, help="of any OpenAI-compatible server, without /v1")
    add("--model", required=True)
    add("--session-header", default="none", help="header for the session's id: none | x-session-id")
    add("--tokenize-url", help="server with /tokenize: computes the hit-rate bound")
    add_workload_options(parser)
    add_request_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Files to write."""
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="the report")
    add("--jsonl", type=Path, metavar="FILE", help="one record per request")


async def run(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """0 if every planned request was answered, else 1. The table goes to `console`."""
    make_workload = workload_maker(args)
    target = make_target(args, args.url, args.model)
    settings = replace(
        make_settings(args),
        session_header=session_header(args.session_header),
        tokenize_url=args.tokenize_url,
    )
    started_at = timestamp()
    measured = await measure(target, make_workload, settings, around, args.workload)
    report = make_report(args.workload, started_at, target, measured, settings.max_concurrency)
    print_report(report, console)
    if args.json:
        write_json(args.json, report)
    if args.jsonl:
        write_jsonl(args.jsonl, measured.result.records)
    return 0 if measured.summary.ok == measured.summary.planned else 1


def session_header(text: str) -> str | None:
    """`none` is no header."""
    return None if text == "none" else text


def timestamp() -> str:
    """Now, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_report(
    label: str, started_at: str, target: Target, measured: Measured, max_concurrency: int | None
) -> Report:
    """The document for `--json`; keys (headers) stay out of it."""
    parameters: dict[str, object] = {
        "workload": measured.workload.name,
        **measured.workload.parameters,
        "endpoint": target.endpoint,
        "extra_body": dict(target.extra),
        "max_concurrency": max_concurrency,
        "tokens_per_word": measured.tokens_per_word,
        "salt": measured.salt,
    }
    return Report(
        version=version("warmgate"),
        started_at=started_at,
        label=label,
        url=target.url,
        model=target.model,
        parameters=parameters,
        summary=measured.summary,
    )
