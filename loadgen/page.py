"""The report as one HTML file: no script, no font and no picture from anywhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from loadgen.quantiles import percentile
from loadgen.record import Record
from loadgen.report import DEFINITIONS, ms, overview, remarks, share
from loadgen.summary import Summary
from loadgen.svg import Plot, Series

RANKS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
ROWS: Final = (
    ("TTFT", "ttft"),
    ("TTFT (failed = inf)", "ttft_failed_inf"),
    ("TTFT sent", "ttft_sent"),
    ("TTFT content", "ttft_content"),
    ("ITL", "itl"),
    ("chunk gap", "chunk_gap"),
    ("TPOT", "tpot"),
    ("E2E", "e2e"),
)
TIMELINE_BUCKETS: Final = 60
STYLE: Final = """
:root{color-scheme:light dark;--fg:#1e293b;--bg:#fff;--dim:#64748b;--line:#cbd5e1}
@media(prefers-color-scheme:dark){:root{--fg:#e2e8f0;--bg:#0f172a;--dim:#94a3b8;--line:#334155}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:2rem auto;
max-width:1180px;padding:0 1rem}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.2rem .8rem;text-align:right;
border-bottom:1px solid var(--line)}td:first-child,th:first-child{text-align:left}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1rem}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--fg)}
svg .title{font-size:13px;font-weight:600}.grid{stroke:var(--line);stroke-width:.5}
.axis{fill:none;stroke:var(--dim)}.note{border-left:3px solid #d97706;padding-left:.8rem}
.best{font-weight:700}.dim,dd{color:var(--dim)}dt{font-weight:600}dd{margin:0 0 .3rem}
.big{display:flex;flex-wrap:wrap;gap:2rem}.big b{display:block;font-size:1.7rem}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One contender: its figures, and the records of one run, of `planned` that there should be."""

    name: str
    summary: Summary
    records: Sequence[Record]
    planned: int


@dataclass(frozen=True, slots=True)
class Page:
    """`notes` are sentences that come first; `tables` title → rows, the first one the heads."""

    title: str
    started_at: str
    parameters: Mapping[str, object]
    runs: Sequence[Run]
    notes: Sequence[str] = ()
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)


def write_html(path: Path, page: Page) -> None:
    """With parents made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page), "utf-8")


def render(page: Page) -> str:
    """The whole document."""
    found = [f"{run.name}: {text}" for run in page.runs for text in remarks(run.summary)]
    notes = "".join(f'<p class="note">{escape(text)}</p>' for text in (*page.notes, *found))
    tables = "".join(f"<h2>{escape(name)}</h2>{_table(rows)}" for name, rows in page.tables.items())
    plots = "".join(f"<figure>{plot.svg()}</figure>" for plot in plots_of(page.runs))
    definitions = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in DEFINITIONS.items()
    )
    parameters = [("parameter", "value"), *((k, str(v)) for k, v in page.parameters.items())]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(page.title)}</h1>"
        f'<p class="dim">warmgate-load, {escape(page.started_at)}</p>{_headline(page.runs)}{notes}'
        f'{tables}<h2>Plots</h2><div class="plots">{plots}</div>'
        f"{_latencies(page.runs)}<h2>Run</h2>{_table(_overview(page.runs))}"
        f"<h2>Parameters</h2>{_table(parameters)}<h2>Definitions</h2><dl>{definitions}</dl>"
        "</body></html>\n"
    )


def plots_of(runs: Sequence[Run]) -> list[Plot]:
    """What can be seen of these runs; a plot without data is left out."""
    plots = [_cdf(runs), _timeline(runs), _throughput(runs), *_replicas(runs), _by_turn(runs)]
    return [plot for plot in plots if any(one.points for one in plot.series)]


def _has_tokens(run: Run) -> bool:
    return any(record.arrivals_s for record in run.records)


def _cdf(runs: Sequence[Run]) -> Plot:
    series = []
    longest = 0.0
    for run in runs:
        ordered = sorted(1e3 * r.ttft_s for r in run.records if r.is_ok and r.ttft_s is not None)
        whole = max(run.planned, 1)
        # Failures never arrive: the curve ends below 100 %.
        points = [(value, 100 * (n + 1) / whole) for n, value in enumerate(ordered)]
        series.append(Series(run.name, points, "steps"))
        longest = max(longest, percentile(ordered, 0.99)) if ordered else longest
    cut = [Series(s.name, [p for p in s.points if p[0] <= longest], s.kind) for s in series]
    return Plot("TTFT: share answered within", "TTFT, ms (to P99)", "% of planned", cut, (), 100.0)


def _timeline(runs: Sequence[Run]) -> Plot:
    series = [
        Series(
            run.name,
            [(r.scheduled_s, 1e3 * r.ttft_s) for r in run.records if r.ttft_s is not None],
            "dots",
        )
        for run in runs
    ]
    return Plot("TTFT over the run", "scheduled arrival, s", "TTFT, ms", series)


def _throughput(runs: Sequence[Run]) -> Plot:
    series = []
    for run in filter(_has_tokens, runs):
        end_s = max((r.end_s for r in run.records), default=0.0)
        width = max(end_s / TIMELINE_BUCKETS, 0.25)
        counts = [0] * (math.ceil(end_s / width) + 1)
        for record in run.records:
            for at, tokens in zip(record.arrivals_s, record.arrival_tokens, strict=True):
                counts[min(max(int(at / width), 0), len(counts) - 1)] += tokens
        points = [((n + 0.5) * width, total / width) for n, total in enumerate(counts[:-1])]
        series.append(Series(run.name, points))
    return Plot("Output tokens per second", "s", "tokens/s", series)


def _replicas(runs: Sequence[Run]) -> list[Plot]:
    ids = sorted({one.id for run in runs for one in run.summary.replicas})
    if not ids:
        return []
    places = {replica: n for n, replica in enumerate(ids)}

    def bars(what: str) -> list[Series]:
        return [
            Series(
                run.name,
                [(places[one.id], float(getattr(one, what))) for one in run.summary.replicas],
                "bars",
            )
            for run in runs
        ]

    return [
        Plot("Requests by replica", "replica", "requests", bars("requests"), ids),
        Plot("Computed prompt tokens", "replica", "tokens", bars("uncached_tokens"), ids),
    ]


def _by_turn(runs: Sequence[Run]) -> Plot:
    turns = max((one.turn for run in runs for one in run.summary.turns), default=-1) + 1
    series = [
        Series(
            run.name,
            [(one.turn, 100 * one.hit_rate) for one in run.summary.turns if one.hit_rate],
            "bars",
        )
        for run in runs
    ]
    labels = [str(turn + 1) for turn in range(turns)]
    return Plot(
        "Hit rate by turn", "turn of the conversation", "% of tokens", series, labels, 100.0
    )


def _headline(runs: Sequence[Run]) -> str:
    cells = []
    for run in runs:
        ttft = run.summary.latency_ms.ttft_failed_inf
        low, high = ttft.p95_ci or (None, None)
        cells.append(
            f"<div>{escape(run.name)}<b>{ms(ttft.p95)} ms</b>P95 TTFT, {ms(low)} to {ms(high)}"
            f"<br>hit rate {share(run.summary.hit_rate)}</div>"
        )
    return f'<div class="big">{"".join(cells)}</div>'


def _latencies(runs: Sequence[Run]) -> str:
    found = []
    for run in runs:
        rows: list[Sequence[str]] = [("ms", "n", *(rank.upper() for rank in RANKS))]
        for title, name in ROWS:
            values = getattr(run.summary.latency_ms, name)
            rows.append((title, str(values.n), *(ms(getattr(values, rank)) for rank in RANKS)))
        found.append(f"<h2>Latencies: {escape(run.name)}</h2>{_table(rows)}")
    return "".join(found)


def _overview(runs: Sequence[Run]) -> list[Sequence[str]]:
    columns = [dict(overview(run.summary)) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    heads: list[Sequence[str]] = [("", *(run.name for run in runs))]
    return heads + [(name, *(column.get(name, "-") for column in columns)) for name in names]


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
