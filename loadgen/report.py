"""What a person reads: tables, remarks, and the definitions under them. Files: `files`, `page`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.health import MAX_CPU
from loadgen.quantiles import Quantiles
from loadgen.reply import BY_TEXT, DELTAS
from loadgen.slo import Verdict
from loadgen.summary import Summary

MIN_ACHIEVED: Final = 0.95
MIN_LENGTH: Final = 0.95

DEFINITIONS: Final = {
    "TTFT": "scheduled arrival -> first non-empty content, reasoning or tool-call delta",
    "TTFT sent": "the same, from sending; differs when --max-concurrency holds requests back",
    "ITL": "gap between two reads with tokens / tokens in the later one, one value per token",
    "TPOT": "(last - first token) / (tokens - those that came with the first one), per request",
    "E2E": "scheduled arrival -> last token",
    "P95 (failed = inf)": "failed requests and turns never sent count as infinitely slow",
    "percentile": "linear interpolation on raw samples; the 95 % interval is of P95 TTFT",
    "output tok/s": "completion tokens of answered requests / (first due -> last end)",
    "hit rate": "cached / prompt tokens as the engine reported them, over answered requests",
    "hit-rate bound": "one unlimited cache for all; full blocks, at most the prompt less a token",
    "goodput": "requests within all limits / all planned, and per second",
    "rates": "requests per second between the first and the last: as scheduled, as sent",
    "load spread": "requests of the busiest replica / mean over replicas",
    "send lag": "sent - scheduled; client-bound when its p99 without the cap's wait is above 50 ms"
    " or the event loop's p99 lag above 25 ms or a process uses over 90 % of a core",
    "failure": "no 200, an error inside the stream, no end of it, no token, or a timeout",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document. `parameters`: what another person needs to repeat the run."""

    version: str
    started_at: str
    label: str
    url: str
    model: str
    parameters: dict[str, Any]
    summary: Summary
    slos: list[Verdict] = []
    definitions: dict[str, str] = msgspec.field(default_factory=DEFINITIONS.copy)


def print_report(report: Report, console: Console) -> None:
    """The tables, the remarks that the figures need, the definitions."""
    summary = report.summary
    console.print(latency_table(report))
    console.print(overview_table(summary))
    if summary.replicas:
        console.print(replica_table(summary))
    if len(summary.turns) > 1:
        console.print(turn_table(summary))
    if summary.engines:
        console.print(engine_table(summary))
    for remark in remarks(summary):
        console.print(escape(remark), highlight=False)
    print_verdicts(report.slos, console)
    print_definitions(console)


def print_verdicts(verdicts: Sequence[Verdict], console: Console, label: str = "") -> None:
    """One line per SLO."""
    for one in verdicts:
        found = "nothing to measure" if one.found is None else f"{_plain(one.found)}"
        word = "[green]met[/green]" if one.is_met else "[bold red]MISSED[/bold red]"
        console.print(f"SLO {word}: {escape(label)}{one.name} {found}, limit {_plain(one.limit)}")


def print_definitions(console: Console) -> None:
    """One line each, so that nobody has to guess what was measured."""
    for name, text in DEFINITIONS.items():
        console.print(f"[dim]{name}: {escape(text)}[/dim]", highlight=False, soft_wrap=True)


def latency_table(report: Report) -> Table:
    """Percentiles by metric, in milliseconds."""
    latency = report.summary.latency_ms
    title = f"{report.label}: milliseconds"
    table = Table("", "n", "mean", "P50", "P90", "P95", "P99", box=box.SIMPLE_HEAD, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    _row(table, "TTFT", latency.ttft)
    if report.parameters.get("max_concurrency"):
        _row(table, "TTFT sent", latency.ttft_sent)
    if latency.ttft_content.p50 != latency.ttft.p50:
        _row(table, "TTFT content", latency.ttft_content)
    _row(table, "ITL", latency.itl)
    _row(table, "chunk gap", latency.chunk_gap)
    _row(table, "TPOT", latency.tpot)
    _row(table, "E2E", latency.e2e)
    if report.parameters.get("max_concurrency"):
        _row(table, "E2E sent", latency.e2e_sent)
    return table


def overview_table(summary: Summary) -> Table:
    """Everything that is one number."""
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in overview(summary):
        table.add_row(name, escape(value))
    return table


def overview(summary: Summary) -> list[tuple[str, str]]:
    """(name, value) rows that `run` and `compare` share."""
    latency, client, lengths = summary.latency_ms, summary.client, summary.lengths
    rates, interval = summary.rates, latency.ttft.p95_ci
    rows = [
        ("95 % interval", "-" if interval is None else " .. ".join(map(ms, interval))),
        ("P95 TTFT (failed = inf)", ms(latency.ttft_failed_inf.p95)),
        ("hit rate", share(summary.hit_rate)),
        ("hit-rate bound", share(summary.hit_rate_bound)),
        ("errors", _errors(summary)),
        ("output tok/s", f"{summary.output_tokens_per_s:.1f}"),
        ("load spread", "-" if summary.load_spread is None else f"{summary.load_spread:.2f}"),
        ("requests answered", f"{summary.ok} of {summary.planned} in {summary.duration_s:.1f} s"),
        ("requests/s", f"{summary.requests_per_s:.2f}"),
        ("P95 E2E (failed = inf)", ms(latency.e2e_failed_inf.p95)),
        ("prompt tokens, mean", f"{lengths.input:.0f} (asked {lengths.asked_input:.0f})"),
        ("output tokens, mean", f"{lengths.output:.1f} (asked {lengths.asked_output:.1f})"),
        ("rate asked / achieved", f"{_rate(rates.requested)} / {_rate(rates.achieved)} per s"),
        ("send lag p50 / p99", f"{client.send_lag_ms_p50:.1f} / {client.send_lag_ms_p99:.1f} ms"),
        ("event loop lag p99", f"{client.loop_lag_ms_p99:.1f} ms"),
        ("client CPU", _cpu(summary)),
        ("client-bound", "YES: the client was too slow" if client.is_bound else "no"),
    ]
    good = summary.goodput
    if good is not None:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in good.limits_ms.items())
        rows.append(("goodput", f"{share(good.share)}, {good.per_s:.2f} per s ({limits})"))
    return rows


def turn_table(summary: Summary) -> Table:
    """The conversation's turns: the later, the more there is to reuse."""
    table = _table_of("turn", "requests", "hit rate", "TTFT P50, ms", "P95, ms")
    for one in summary.turns:
        figures = (share(one.hit_rate), ms(one.ttft_ms_p50), ms(one.ttft_ms_p95))
        table.add_row(str(one.turn + 1), str(one.requests), *figures)
    return table


def engine_table(summary: Summary) -> Table:
    """What the engines counted themselves: a second opinion, without network and client."""
    names = ("requests", "prompt tokens", "output tokens", "hit rate", "preempted", "TTFT mean, ms")
    table = _table_of("engine's own counters", *names)
    for one in summary.engines:
        counts = (one.requests, one.prompt_tokens, one.output_tokens)
        first = ("-" if count is None else f"{count:,}" for count in counts)
        preempted = "-" if one.preemptions is None else str(one.preemptions)
        table.add_row(escape(one.url), *first, share(one.hit_rate), preempted, ms(one.ttft_ms_mean))
    return table


def _table_of(*columns: str) -> Table:
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def replica_table(summary: Summary) -> Table:
    """Who answered how much."""
    names = ("requests", "prompt tokens", "of them computed", "output tokens")
    table = _table_of("replica", *names, "hit rate", "P95 TTFT, ms")
    for one in summary.replicas:
        figures = (one.requests, one.prompt_tokens, one.uncached_tokens, one.output_tokens)
        last = (share(one.hit_rate), ms(one.ttft_ms_p95))
        table.add_row(escape(one.id), *(f"{figure:,}" for figure in figures), *last)
    return table


def remarks(summary: Summary) -> list[str]:
    """Sentences that the figures must not be read without."""
    found = [f"error: {example}" for example in summary.error_examples]
    if summary.is_stopped:
        found.append("stopped early: requests that were open are not in these figures")
    if summary.hit_rate is None and summary.ok:
        found.append(
            "hit rate: the engine reports no cached_tokens (vLLM: --enable-prompt-tokens-details)"
        )
    if summary.token_sources.get(DELTAS):
        found.append("tokens: no usage in the stream, so each delta counts as one token")
    if summary.token_sources.get(BY_TEXT):
        found.append(
            "ITL: deltas hold several tokens; shared out by text (exact: --usage-per-chunk)"
        )
    return [*found, *_rate_remarks(summary), *_client_remarks(summary)]


def _rate_remarks(summary: Summary) -> list[str]:
    asked, got = summary.rates.requested, summary.rates.achieved
    found = []
    if asked and got and got < MIN_ACHIEVED * asked:
        found.append(f"rate: {got:.2f} requests/s were sent, {asked:.2f} were due")
    lengths = summary.lengths
    if summary.ok and lengths.output < MIN_LENGTH * lengths.asked_output:
        found.append(
            "lengths: answers are shorter than asked; they end themselves"
            """ (vLLM: --extra-body '{"ignore_eos": true}')"""
        )
    return found


def _client_remarks(summary: Summary) -> list[str]:
    client = summary.client
    if not client.is_bound:
        return []
    found = ["client-bound: latencies include this program's own delay; use less load or more CPU"]
    if client.cpu_busiest > MAX_CPU:
        found.append("client-bound: a process needs a whole core; use more --processes")
    return found


def ms(value: float | str | None) -> str:
    """One decimal below 100 ms; "-" for none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def share(value: float | None) -> str:
    """A part of one in percent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cpu(summary: Summary) -> str:
    client = summary.client
    each = "" if client.cpu_us_per_event is None else f", {client.cpu_us_per_event:.0f} µs an event"
    many = f" in {client.processes} processes" if client.processes > 1 else ""
    return f"{client.cpu:.0%} of a core{many}{each}; {client.events_per_s:,.0f} events/s"


def _row(table: Table, name: str, values: Quantiles) -> None:
    cells: Sequence[float | str | None] = (
        values.mean,
        values.p50,
        values.p90,
        values.p95,
        values.p99,
    )
    table.add_row(name, str(values.n), *(ms(cell) for cell in cells))


def _errors(summary: Summary) -> str:
    kinds = ", ".join(f"{kind}: {count}" for kind, count in summary.errors_by_kind.items())
    text = str(summary.errors) + (f" ({kinds})" if kinds else "")
    return text + (f", {summary.unsent} turns never sent" if summary.unsent else "")
