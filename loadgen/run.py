"""`warmgate-load run`: one workload against one server."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rich.console import Console

from loadgen.client import Target
from loadgen.files import write_csv, write_json, write_jsonl
from loadgen.measure import Measured, Settings, Surroundings, measure
from loadgen.options import (
    add_request_options,
    make_settings,
    make_target,
    session_header,
)
from loadgen.page import Page, Run, write_html
from loadgen.recipes import add_workload_options, workload_maker
from loadgen.report import Report, print_report
from loadgen.scenario import add_scenario_option
from loadgen.slo import judge

EXIT_FAILED: Final = 1
EXIT_SLO: Final = 3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `run`."""
    parser = commands.add_parser("run", help="one workload against one server")
    add_target_options(parser)
    add_load_options(parser)
    parser.set_defaults(run=run)


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """What is sent, how, and where the figures go."""
    add_workload_options(parser)
    add_request_options(parser)
    add_output_options(parser)


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """One server."""
    add_scenario_option(parser)
    add = parser.add_argument_group("target").add_argument
    add("--url", required=True, help="of any OpenAI-compatible server, without /v1")
    add("--model", required=True)
    add("--session-header", default="none", help="header for the session's id: none | x-session-id")
    add("--tokenize-url", help="server with /tokenize: computes the hit-rate bound")
    add("--metrics-url", action="append", default=[], metavar="URL",
        help="an engine whose counters are read before and after; repeatable")  # fmt: skip


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Files to write."""
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="the report (schema: warmgate-load report)")
    add("--jsonl", type=Path, metavar="FILE", help="one record per request")
    add("--csv", type=Path, metavar="FILE", help="a row per metric")
    add("--html", type=Path, metavar="FILE", help="one page with plots, nothing to load")


async def run(args: argparse.Namespace, console: Console, around: Surroundings) -> int:
    """1 if a planned request was not answered; 3 if all were and an SLO is missed."""
    recipe = workload_maker(args)
    target = make_target(args, args.url, args.model)
    settings = target_settings(args)
    started_at = timestamp()
    measured = await measure(target, recipe, settings, around, args.workload)
    report = make_report(args.workload, started_at, target, measured, settings)
    report.slos.extend(judge(measured.summary, dict(args.slo)))
    print_report(report, console)
    write_files(args, report, measured)
    return exit_code(report)


def target_settings(args: argparse.Namespace) -> Settings:
    """With what depends on the target."""
    return replace(
        make_settings(args),
        session_header=session_header(args.session_header),
        tokenize_url=args.tokenize_url,
        metrics_urls=tuple(args.metrics_url),
    )


def exit_code(report: Report) -> int:
    """SLOs decide where there are any that say something about errors."""
    missed = any(not one.is_met for one in report.slos)
    names = {one.name for one in report.slos}
    if report.summary.ok < report.summary.planned and "error_share" not in names:
        return EXIT_FAILED
    return EXIT_SLO if missed else 0


def write_files(args: argparse.Namespace, report: Report, measured: Measured) -> None:
    """Each that was asked for."""
    if args.json:
        write_json(args.json, report)
    if args.jsonl:
        write_jsonl(args.jsonl, measured.result.records)
    if args.csv:
        write_csv(args.csv, {report.label: report.summary})
    if args.html:
        counted = measured.counted
        runs = [Run(report.label, report.summary, counted.records, counted.planned)]
        title = f"Load test of {report.model}: {report.label}"
        write_html(args.html, Page(title, report.started_at, report.parameters, runs))


def timestamp() -> str:
    """Now, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_report(
    label: str, started_at: str, target: Target, measured: Measured, settings: Settings
) -> Report:
    """The document for `--json`; keys (headers) stay out of it."""
    window = settings.window
    parameters: dict[str, object] = {
        "workload": measured.workload.name,
        "seed": measured.seed,
        **measured.workload.parameters,
        "endpoint": target.endpoint,
        "extra_body": dict(target.extra),
        "max_concurrency": settings.max_concurrency,
        "concurrency": settings.concurrency,
        "processes": settings.processes,
        "cache": settings.cache,
        "warmup_s": window.warmup_s,
        "warmup_requests": window.warmup_requests,
        "cooldown_s": window.cooldown_s,
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
