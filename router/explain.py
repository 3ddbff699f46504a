"""`warmgate explain` and `warmgate shadow`: what a running router would do, and why."""

import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

COLUMNS = (
    ("replica", "id"),
    ("trust", "trust"),
    ("matched", "matched_blocks"),
    ("of blocks", "prompt_blocks"),
    ("by tier", "tiers"),
    ("expected tokens", "expected_tokens"),
    ("distance ms", "distance_ms"),
    ("load ms", "load_ms"),
    ("wait ms", "wait_ms"),
    ("memory wait ms", "memory_wait_ms"),
    ("prefill ms", "prefill_ms"),
    ("TTFT ms", "ttft_ms"),
    ("cost ms", "cost_ms"),
    ("running", "running"),
    ("because", "because"),
)
WORDS = ("id", "trust", "tiers", "because")

SHADOW_COLUMNS = (
    ("policy", "policy"),
    ("requests", "requests"),
    ("same choice %", "same_choice"),
    ("predicted hit %", "predicted_hit_rate"),
    ("TTFT mean ms", "predicted_ttft_mean_ms"),
    ("p50", "predicted_ttft_p50_ms"),
    ("p95", "predicted_ttft_p95_ms"),
)
SHARES = ("same_choice", "predicted_hit_rate")


class Unexplained(Exception):
    """The router gave no answer; says what it said instead."""


def ask(url: str, path: str, body: bytes, session: str | None) -> dict[str, Any]:
    """One POST to the router's `/debug/explain`. Unexplained."""
    where = f"{url.rstrip('/')}/debug/explain?{urllib.parse.urlencode({'path': path})}"
    headers = {"content-type": "application/json"}
    if session is not None:
        headers["x-session-id"] = session
    return _answer(urllib.request.Request(where, body, headers))


def ask_shadow(url: str) -> dict[str, Any]:
    """The router's `/debug/shadow`. Unexplained."""
    return _answer(urllib.request.Request(f"{url.rstrip('/')}/debug/shadow"))


def _answer(request: urllib.request.Request) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(request, timeout=30.0) as reply:
            return msgspec.json.decode(reply.read(), type=dict[str, Any])
    except urllib.error.HTTPError as exc:
        with exc:
            raise Unexplained(f"{exc.code}: {exc.read().decode('utf-8', 'replace')}") from exc
    except (OSError, msgspec.DecodeError) as exc:
        raise Unexplained(f"{request.full_url}: {exc}") from exc


def show(answer: dict[str, Any], console: Console) -> None:
    """First choice first."""
    failure, silence = answer["tokenize_failure"], answer.get("index_failure")
    console.print(
        f"{answer['policy']}: {answer['reason']}; {answer['prompt_tokens']} prompt tokens"
        + (f"; not tokenized: {failure}" if failure else "")
        + (f"; the index did not answer: {silence}" if silence else ""),
        highlight=False,
    )
    if answer["queue"]["slo_ttft_ms"] is not None:
        waits = "would wait" if answer["queue"]["would_wait"] else "would not wait"
        console.print(
            f"{waits} in the router; {answer['queue']['requests']} requests do", highlight=False
        )
    table = Table()
    for title, key in COLUMNS:
        table.add_column(title, justify="left" if key in WORDS else "right")
    for row in answer["replicas"]:
        table.add_row(*(_text(row[key]) for _, key in COLUMNS))
    console.print(table)


def show_shadow(answer: dict[str, Any], console: Console) -> None:
    """The policy that acts first; a table for each process."""
    for part in answer.get("processes", [answer]):
        if not part["policies"]:
            console.print("nothing is compared: routing.shadow is empty", highlight=False)
            continue
        table = Table(title=f"{part['policy']} acts; TTFT and hits are predictions")
        for title, _ in SHADOW_COLUMNS:
            table.add_column(title, justify="left" if title == "policy" else "right")
        for row in part["policies"]:
            table.add_row(*(_shadow_text(row[key], key) for _, key in SHADOW_COLUMNS))
        console.print(table)


def _shadow_text(value: Any, key: str) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if key in SHARES else _text(value)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {blocks}" for name, blocks in value.items())
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
